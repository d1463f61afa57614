"""What a run does when, beside training itself: lines of metrics, evaluations, comparisons, and where it stops."""

from dataclasses import dataclass

from gradwire.schedulers import Clock, Plan
from gradwire.trainer.settings import Settings
from gradwire.trainer.triggers import Every, Until, WallClock


@dataclass(frozen=True)
class Due:
    """What an update is followed by.

    Attributes:
        log: A line of metrics.
        evaluate: An evaluation.
        check_replicas: A comparison of the ranks' weights.
    """

    log: bool
    evaluate: bool
    check_replicas: bool


class Agenda:
    """Pure functions of the clock, but for the time that the run may take.

    Args:
        settings: Their intervals.
        plan: Converts epochs, tokens and per cents into samples.

    Raises:
        IntervalError: an interval is less than a sample or an update.
    """

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self._log_every = settings.log_every
        self._evaluations = Every(settings.evaluate_every, plan)
        self._comparisons = Every(settings.check_replicas_every, plan)
        self._stop = Until(settings.stop_at, plan)
        self._time = WallClock(settings.max_time)

    def out_of_time(self) -> bool:
        """Whether the run has taken as long as it may."""
        return self._time.due()

    def evaluates_at_start(self, clock: Clock) -> bool:
        """Whether the model is evaluated before its first update."""
        return clock.updates == 0 and self._evaluations.ever

    def stops(self, clock: Clock, plan: Plan) -> bool:
        """Whether the run is where it is to stop, before its end."""
        return self._stop.passed(clock) and not plan.finished(clock)

    def after(self, before: Clock, clock: Clock, plan: Plan) -> Due:
        """What is due after the update that has moved the clock; the last one before an end or a stop is evaluated."""
        end = plan.finished(clock) or self._stop.passed(clock)
        return Due(
            log=end or clock.updates % self._log_every == 0,
            evaluate=self._evaluations.due(before, clock) or (end and self._evaluations.ever),
            check_replicas=self._comparisons.due(before, clock),
        )
