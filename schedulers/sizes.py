"""Batch sizes of a run whose length is known, and the length of a run that is given in updates."""

import math
from dataclasses import dataclass, replace
from functools import cache

from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import PlanError, about
from gradwire.schedulers.horizon import Horizon, Progress
from gradwire.schedulers.schedule import Schedule
from gradwire.schedulers.trajectory import Trajectory, last_not_negative, trace, whole_batch


@dataclass(frozen=True)
class Sizes:
    """The batch size at every point of a run.

    Args:
        schedule: Gives it; no length in it is in updates.
        horizon: The run as the schedule sees it.
        trajectory: All of the run's batches.
    """

    schedule: Schedule
    horizon: Horizon
    trajectory: Trajectory

    def at(self, samples: int) -> int:
        """Planned size of the update that starts after so many samples."""
        place = Progress(samples, samples, self.horizon.total, self.horizon)
        return whole_batch(self.schedule.value(place), self.horizon.granule)

    def updates_from(self, samples: int) -> int:
        """Updates from a sample to the end of the run, also from one at which none of the run's own updates starts."""
        done = self.trajectory.updates_after(samples)
        if done == int(done) or samples >= self.horizon.total:
            return max(self.trajectory.updates - int(done), 0)
        return _traced(self.schedule, self.horizon, since=samples, samples=self.trajectory.samples - samples).updates


def follow(schedule: Schedule, run_length: Duration, horizon: Horizon) -> Sizes:
    """Find all batch sizes of a run.

    A length in updates is the sum of so many batches. Where these depend on the length of the run (per cents), the
    longest run is taken whose batches still reach its end, found by search; it differs from the sum of its batches by
    about one batch at most, and the sum is what counts.

    Args:
        schedule: The batch-size schedule.
        run_length: Length of the run.
        horizon: The run, its total not known yet.

    Raises:
        PlanError: the length is empty, or in a unit that a run's length cannot have.
    """
    if run_length.unit == "%":
        raise PlanError(
            f"a run cannot be {run_length} of itself: give its length in samples, tokens, updates or epochs",
            "run_length",
        )
    if run_length.unit != "updates":
        with about("run_length"):
            total = horizon.to_samples(run_length)
        _refuse_empty(total, run_length)
        return _followed(schedule, replace(horizon, total=total), samples=total)
    _refuse_empty(run_length.amount, run_length)

    settled: Schedule | None = None

    @cache
    def of(total: int) -> Sizes:
        nonlocal settled
        found = _followed(schedule, replace(horizon, total=total), updates=run_length.amount, before=settled)
        settled = found.schedule
        return found

    low = max(int(run_length.amount) * horizon.granule, 1)  # no update is smaller than a granule
    first = of(low).trajectory.samples
    sizes = of(first)
    if sizes.trajectory.samples == first:
        return sizes

    def excess(total: int) -> int:
        return of(total).trajectory.samples - total

    high = max(first, low + 1)
    while excess(high) >= 0:
        low, high = high, 2 * high
    return of(last_not_negative(excess, low, high))


def _followed(
    schedule: Schedule,
    horizon: Horizon,
    *,
    samples: int | None = None,
    updates: float = math.inf,
    before: Schedule | None = None,
) -> Sizes:
    settled = schedule.settled(Progress(0, 0, horizon.total, horizon), before)
    return Sizes(settled, horizon, _traced(settled, horizon, samples=samples, updates=updates))


def _traced(
    schedule: Schedule, horizon: Horizon, since: int = 0, *, samples: int | None = None, updates: float = math.inf
) -> Trajectory:
    """All batches of a settled schedule from a sample on."""

    def place(start: int) -> Progress:
        return Progress(since + start, since + start, horizon.total, horizon)

    value_at = schedule.along(place(0))
    return trace(
        (lambda start: value_at(since + start)) if since else value_at,
        lambda start: schedule.monotone_until(place(start)) - since,
        granule=horizon.granule,
        samples=samples,
        updates=updates,
    )


def _refuse_empty(amount: float, run_length: Duration) -> None:
    if amount < 1:
        raise PlanError(
            f"a run of '{run_length}' is less than one sample or update: give it a longer run_length", "run_length"
        )
