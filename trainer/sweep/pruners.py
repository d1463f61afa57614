"""What ends trials that are behind.

Most go by the evaluations of all trials while they run. Evaluations are counted, the one before the first update being
number 0: trials are compared where they have had equally many. A verdict is a function of the values in the study
alone, so it is the same when it is asked for again. Hyperband's trials wait at rungs instead.
"""

from typing import TYPE_CHECKING, Annotated, Protocol

from gradwire.trainer.config.range import Range
from gradwire.trainer.sweep.ladder import Ladder

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial


class Pruner(Protocol):
    """Ends trials that are behind."""

    def behind(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Whether to end a trial after its last evaluation, which is in the study already."""

    def misfit(self) -> str | None:
        """What is wrong with its settings, if anything is."""

    def ladder(self) -> Ladder | None:
        """The rungs at which trials wait to be told whether they go on; None where they run through."""


class _Watching:
    """What pruners say that end trials while they run."""

    def misfit(self) -> str | None:
        return None

    def ladder(self) -> Ladder | None:
        return None


class Median(_Watching):
    """Ends a trial whose best value so far is worse than the median of the others at the same evaluation.

    Args:
        startup: Finished trials without which none is ended.
        warmup: Evaluations of a trial after which it may be ended.
    """

    def __init__(self, startup: Annotated[int, Range(ge=0)] = 5, warmup: Annotated[int, Range(ge=0)] = 0) -> None:
        self._percentile = Percentile(50.0, startup, warmup)

    def behind(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Whether its best value is worse than the median."""
        return self._percentile.behind(study, trial)


class Percentile(_Watching):
    """Ends a trial whose best value so far is not among the best of the others at the same evaluation.

    Args:
        keep: Percent of trials that are kept.
        startup: Finished trials without which none is ended.
        warmup: Evaluations of a trial after which it may be ended.
    """

    def __init__(
        self,
        keep: Annotated[float, Range(gt=0, lt=100)] = 25.0,
        startup: Annotated[int, Range(ge=0)] = 5,
        warmup: Annotated[int, Range(ge=0)] = 0,
    ) -> None:
        self._keep, self._startup, self._warmup = keep, startup, warmup

    def behind(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Whether its best value is beyond the percentile."""
        from optuna.pruners import PercentilePruner

        return bool(PercentilePruner(self._keep, self._startup, self._warmup).prune(study, trial))


class Hyperband:
    """Successive halving in brackets, from many short trials to few long ones (Li 2018, arXiv 1603.06560).

    At a rung a trial saves and waits until all of its bracket are there; the best of them go on from what they saved.

    Args:
        factor: Each rung lies this many times as far as the one below, and one trial in so many goes on from it.
        rungs: Rungs of the first bracket: its trials wait at 1/factor^rungs of their run first. Each bracket has one
            less than the one before it.
        brackets: So many of them, over and over; null has them all, down to one whose trials run through.
    """

    def __init__(
        self,
        factor: Annotated[int, Range(ge=2)] = 3,
        rungs: Annotated[int, Range(ge=1, le=30)] = 3,
        brackets: Annotated[int, Range(ge=1)] | None = None,
    ) -> None:
        self._ladder, self._rungs, self._brackets = Ladder.hyperband(factor, rungs, brackets), rungs, brackets

    def behind(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Nothing ends between rungs."""
        return False

    def misfit(self) -> str | None:
        """There are as many brackets as numbers of rungs."""
        most = self._rungs + 1
        if self._brackets is None or self._brackets <= most:
            return None
        return f"rungs={self._rungs} makes {most} brackets, and brackets={self._brackets} is more"

    def ladder(self) -> Ladder:
        """The brackets."""
        return self._ladder


class SuccessiveHalving(_Watching):
    """Lets the best part of the trials pass each rung (Li 2020, arXiv 1810.05934); the first to arrive passes, and
    none waits.

    Args:
        first: Evaluation at which the first rung is.
        factor: Each rung lies this many times as far as the one before, and lets one in so many pass.
    """

    def __init__(self, first: Annotated[int, Range(ge=1)] = 1, factor: Annotated[int, Range(ge=2)] = 4) -> None:
        self._first, self._factor = first, factor

    def behind(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Whether it is at a rung, and not among the best that were there."""
        step = trial.last_step
        if step is None or not self._is_rung(step):
            return False
        value = trial.intermediate_values[step]
        others = [other.intermediate_values for other in study.get_trials(deepcopy=False)]
        there = [values[step] for values in others if step in values]
        places = max(1, len(there) // self._factor)
        sign = 1 if study.direction.name == "MINIMIZE" else -1
        better = sum(1 for each in there if sign * each < sign * value)
        return better >= places or value != value  # NaN is never good enough

    def _is_rung(self, step: int) -> bool:
        rung = self._first
        while rung < step:
            rung *= self._factor
        return rung == step


class Patience(_Watching):
    """Ends a trial that has not become better for a while.

    Args:
        evaluations: So many in a row without a better value end it.
        least: What counts as better, in units of the objective.
    """

    def __init__(
        self, evaluations: Annotated[int, Range(ge=1)] = 3, least: Annotated[float, Range(ge=0)] = 0.0
    ) -> None:
        self._evaluations, self._least = evaluations, least

    def behind(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Whether its last evaluations brought nothing."""
        sign = 1 if study.direction.name == "MINIMIZE" else -1
        values = [sign * value for _, value in sorted(trial.intermediate_values.items())]
        before, since = values[: -self._evaluations], values[-self._evaluations :]
        best = min((value for value in before if value == value), default=None)  # NaN is none
        return best is not None and not any(value < best - self._least for value in since)
