"""Measures the gradient noise scale while training: squared norms of micro-batch gradients before they are added up."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gradwire.schedulers.noise_scale import Norms
from gradwire.trainer.errors import NoiseError
from gradwire.trainer.norm_layers import NormLayerMeter, norm_layers
from gradwire.trainer.strategies.exchanges import Removable, hook
from gradwire.trainer.strategies.sharding import is_sharded
from gradwire.trainer.sync_batchnorm import SyncBatchNorm
from gradwire.trainer.tally import Part, Tally, entries

Watch = Callable[[nn.Parameter, Callable[[Tensor], None]], Removable]

_ALONE = "one rank with one micro-batch an update has no smaller gradient to compare with"


class Meter(Protocol):
    """What measures the norms of an update.

    In an update that is measured: every pass that counts runs within `micro_batch`; afterwards `local()` is summed over
    the ranks, and `norms` turns the sum and `big()`, read before clipping, into the norms.
    """

    groups: Mapping[str, Sequence[nn.Parameter]]

    def micro_batch(self, targets: int) -> AbstractContextManager[None]:
        """Within the block: one forward and backward over so many valid targets. Gradients keep their bits."""
        ...

    def local(self) -> Tensor:
        """This rank's sums of the update, float64 on the CPU, to be summed over ranks; they are cleared."""
        ...

    def big(self, part: Part = lambda parameter: parameter.grad) -> dict[str, float]:
        """Squared norms, by group, of the gradients that the parameters hold now: reduced, unscaled, not clipped.

        Args:
            part: What of a parameter's gradient is looked at here; None where another rank looks at it.
        """
        ...

    def norms(
        self, summed: Tensor, big: Mapping[str, float], batch_size: int, targets: int, scale: float = 1.0
    ) -> dict[str, Norms]:
        """Norms of the update by group; empty where it had only one small gradient.

        Args:
            summed: Sum of all ranks' `local()`.
            big: Squared norms of the reduced gradients.
            batch_size: Samples of the global batch.
            targets: Valid targets of the global batch, by which the losses were divided.
            scale: Loss scale of the passes, already divided out of `big`.

        Raises:
            NoiseError: what was seen cannot be used, on every rank alike; it will not get better.
        """
        ...


class NoiseMeter:
    """Small gradients are those of micro-batches on single ranks; the big one is that of the whole batch.

    A hook on each parameter sees a micro-batch's gradient before it is accumulated and reduced, and takes its norm at
    once, where the gradient lies: nothing is kept and nobody waits. Sizes may differ; each micro-batch counts by its
    targets. Make it after the model is on its device. Where micro-batch statistics enter the gradient (batch
    normalization) or dropout does, their noise is part of what is measured.

    Args:
        groups: Parameters by group name; one that comes up again counts where it came first.
        watch: Has a function see each gradient of a parameter before it is accumulated and reduced.

    Raises:
        NoiseError: there is no parameter.
    """

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]], watch: Watch = hook) -> None:
        self._tally = Tally(groups)
        self._watch = watch
        self.groups: Mapping[str, Sequence[nn.Parameter]] = self._tally.groups
        parameters = self._tally.parameters
        exact = any(parameter.dtype == torch.float64 for parameter in parameters)
        kind = torch.float64 if exact else torch.float32
        self._norms_P = torch.zeros(len(parameters), dtype=kind, device=parameters[0].device)
        self._cells = tuple(self._norms_P.unbind())

    @contextmanager
    def micro_batch(self, targets: int) -> Iterator[None]:
        """Within the block: one forward and backward over so many valid targets."""
        if not targets:
            yield
            return
        arrived: list[int] = []
        self._norms_P.zero_()
        handles = [
            self._watch(parameter, self._taker(place, arrived))
            for place, parameter in enumerate(self._tally.parameters)
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if len(arrived) != len(set(arrived)):
            self._tally.spoil()
        self._tally.add(self._norms_P.double().square(), targets)

    def local(self) -> Tensor:
        """This rank's sums of the update, to be summed over ranks; they are cleared."""
        return self._tally.take()

    def big(self, part: Part = lambda parameter: parameter.grad) -> dict[str, float]:
        """Squared norms, by group, of the gradients that the parameters hold now."""
        return self._tally.big(part)

    def norms(
        self, summed: Tensor, big: Mapping[str, float], batch_size: int, targets: int, scale: float = 1.0
    ) -> dict[str, Norms]:
        """Norms of the update by group; empty where it had only one small gradient.

        Raises:
            NoiseError: a parameter received its gradient in parts.
        """
        if not self._tally.is_sound(summed):
            raise NoiseError(
                "a parameter received more than one gradient in a micro-batch, so the norm of their sum is not known. "
                "Use torch.utils.checkpoint with use_reentrant=False and one backward a micro-batch, or set "
                "noise_scale.every=null"
            )
        return self._tally.norms(summed, big, batch_size, targets, scale)

    def _taker(self, place: int, arrived: list[int]) -> Callable[[Tensor], None]:
        cell = self._cells[place]

        def take(gradient: Tensor) -> None:
            arrived.append(place)
            torch.linalg.vector_norm(entries(gradient), dtype=cell.dtype, out=cell)

        return take


@dataclass(frozen=True)
class Choice:
    """The way to measure that suits a run.

    Args:
        meter: What measures; None where nothing can.
        reason: Why this one, or why none; for people.
    """

    meter: Meter | None
    reason: str


def meter_for(
    model: nn.Module,
    groups: Mapping[str, Sequence[nn.Parameter]],
    world_size: int,
    micro_batches: int,
    watch: Watch = hook,
) -> Choice:
    """The meter for a run of so many ranks with so many micro-batches each in an update."""
    reason = obstacle(
        world_size,
        micro_batches,
        norm_layers=bool(norm_layers(model)) and not any(is_sharded(each) for each in model.parameters()),
        compiled=any(module._compiled_call_impl is not None for module in model.modules()),
        synchronized=any(isinstance(module, SyncBatchNorm) for module in model.modules()),
    )
    if reason is not None:
        return Choice(None, reason)
    if world_size * micro_batches > 1:
        return Choice(NoiseMeter(groups, watch), f"{world_size} × {micro_batches} micro-batch gradients an update")
    return Choice(NormLayerMeter(model), f"{_ALONE}; per-example gradients of the norm layers stand in")


def obstacle(
    world_size: int, micro_batches: int, *, norm_layers: bool, compiled: bool, synchronized: bool
) -> str | None:
    """Why no meter suits a run; None where one does.

    Args:
        world_size: Ranks that take part in an update.
        micro_batches: Of each rank in an update.
        norm_layers: Whether the model has some whose weights are trained.
        compiled: Whether its blocks are compiled.
        synchronized: Whether its batch norms span the ranks.
    """
    if world_size > 1 and synchronized:
        return (
            "sync_batchnorm makes the gradient of each rank depend on the samples of all, so that its noise cannot be "
            "told: set sync_batchnorm=false"
        )
    if world_size * micro_batches > 1:
        return None
    if not norm_layers:
        return (
            f"{_ALONE}, and the model has no trainable LayerNorm or RMSNorm, not sharded, to take per-example "
            "gradients from: "
            "lower batch.micro, or use more ranks"
        )
    if compiled:
        return (
            f"{_ALONE}, and per-example gradients of norm layers cannot be taken from compiled blocks: "
            "lower batch.micro, use more ranks, or set compile=false"
        )
    return None
