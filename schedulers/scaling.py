"""Scaling rules: how the learning rate follows the batch size. κ is the batch over the reference batch.

Published rules disagree, so none is implied: a plan scales nothing unless it is told to.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Self

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.horizon import Horizon
from gradwire.schedulers.schedule import Schedule
from gradwire.schedulers.sizes import Sizes, follow

Betas = tuple[float, float]


@dataclass(frozen=True)
class Scaled:
    """An optimizer's settings for one update.

    Args:
        lr: Learning rate.
        betas: Adam's betas; None where the plan was given none.
        eps: Adam's epsilon; None where the plan was given none.
    """

    lr: float
    betas: Betas | None = None
    eps: float | None = None


class Scaling(ABC):
    """A rule for the optimizer's settings at another batch size than the one they were found for."""

    @abstractmethod
    def apply(self, lr: float, batch_size: int, betas: Betas | None = None, eps: float | None = None) -> Scaled:
        """The settings for one update of `batch_size` samples.

        Raises:
            PlanError: the rule has no valid settings for this batch size.
        """

    def with_reference(self, batch_size: int) -> Self:
        """The rule with its reference batch filled in where it was left open."""
        return self

    measures: bool = False  # whether the rule reads measured noise scales (`Horizon.noise`)
    shown_for: Literal["sgd", "adaptive"] | None = None  # the optimizers that the rule was derived and shown for

    def follow(self, batch: Schedule, run_length: Duration, horizon: Horizon, lr: Schedule) -> tuple[Sizes, Schedule]:
        """All batches of a run, and its learning-rate schedule; a rule with a clock of its own has others.

        Raises:
            PlanError: the run's length, its batches and the rule do not fit together.
        """
        return follow(batch, run_length, horizon), lr


@dataclass(frozen=True)
class NoScaling(Scaling):
    """The optimizer's settings hold at every batch size."""

    def apply(self, lr: float, batch_size: int, betas: Betas | None = None, eps: float | None = None) -> Scaled:
        return Scaled(lr, betas, eps)


@checked(ScheduleError)
@dataclass(frozen=True)
class Linear(Scaling):
    """Learning rate in proportion to the batch: η = η₀·B/B₀, betas and epsilon unchanged.

    Source: linear scaling rule for SGD, Goyal et al. 2017 (arXiv 1706.02677, section 2.1); use it with a warm-up.

    Args:
        reference: Batch size at which the learning rate holds; null means the full batch.
    """

    reference: int | None = None

    shown_for = "sgd"

    def __post_init__(self) -> None:
        check_reference(self.reference)

    def apply(self, lr: float, batch_size: int, betas: Betas | None = None, eps: float | None = None) -> Scaled:
        return Scaled(lr * batch_size / _known(self.reference), betas, eps)

    def with_reference(self, batch_size: int) -> "Linear":
        return self if self.reference is not None else replace(self, reference=batch_size)


@checked(ScheduleError)
@dataclass(frozen=True)
class SquareRoot(Scaling):
    """Learning rate with the root of the batch: η′ = √κ·η; with `adapt_betas` 1 − β′ = κ(1 − β) and ε′ = ε/√κ too.

    Source: square root scaling rule for Adam, Malladi et al. 2022 (arXiv 2205.10287), which scales all of
    them. β′ must not fall below 0: at β₁ = 0.9 batches over 10 times the reference are refused.

    Args:
        reference: Batch size at which the learning rate holds; null means the full batch.
        adapt_betas: Whether Adam's betas and epsilon follow as well.
    """

    reference: int | None = None
    adapt_betas: bool = False

    shown_for = "adaptive"

    def __post_init__(self) -> None:
        check_reference(self.reference)

    def apply(self, lr: float, batch_size: int, betas: Betas | None = None, eps: float | None = None) -> Scaled:
        kappa = batch_size / _known(self.reference)
        root = math.sqrt(kappa)
        if not self.adapt_betas:
            return Scaled(lr * root, betas, eps)
        if betas is None:
            raise PlanError("adapt_betas scales Adam's betas, but the plan has none: give them, or leave it off")
        adapted = self._adapted(betas[0], kappa), self._adapted(betas[1], kappa)
        return Scaled(lr * root, adapted, None if eps is None else eps / root)

    def with_reference(self, batch_size: int) -> "SquareRoot":
        return self if self.reference is not None else replace(self, reference=batch_size)

    def _adapted(self, beta: float, kappa: float) -> float:
        adapted = 1 - kappa * (1 - beta)
        if adapted < -1e-12:  # rounding is no reason to refuse
            raise PlanError(
                f"adapt_betas turns beta {beta} into {adapted:.4g} at κ = {kappa:.4g} (batch over reference "
                f"{self.reference}); it is valid up to κ = {1 / (1 - beta):.4g}: "
                "take a larger reference or leave it off"
            )
        return max(adapted, 0.0)


def check_reference(reference: int | None) -> None:
    """Refuse a reference batch that is none.

    Raises:
        ScheduleError: it is not a number of samples from 1 on.
    """
    if reference is not None and reference < 1:
        raise ScheduleError(
            f"the reference batch of a scaling rule is a number of samples from 1 on; found {reference!r}"
        )


def _known(reference: int | None) -> int:
    if reference is None:
        raise PlanError("this scaling rule has no reference batch: give it one, or use it in a Plan")
    return reference
