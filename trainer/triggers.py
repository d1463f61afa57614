"""When something is due: every so many updates, samples, tokens or epochs, or after so much wall-clock time."""

import time

from gradwire.schedulers import Clock, Duration, Plan
from gradwire.trainer.errors import IntervalError


class Every:
    """Due whenever the clock passes a multiple of an interval; a pure function of two clocks.

    Args:
        interval: Any Duration but wall-clock time; None is never due.
        plan: Converts epochs, tokens and per cents into samples.

    Raises:
        IntervalError: the interval is less than a sample or an update.
    """

    def __init__(self, interval: Duration | None, plan: Plan) -> None:
        self._updates = interval is not None and interval.unit == "updates"
        self._interval = 0 if interval is None else int(interval.amount) if self._updates else plan.to_samples(interval)
        if interval is not None and self._interval < 1:
            raise IntervalError(
                f"an interval of '{interval}' is less than one sample: write a longer one, or null for never"
            )

    @property
    def ever(self) -> bool:
        """Whether there is an interval at all."""
        return self._interval > 0

    def due(self, before: Clock, after: Clock) -> bool:
        """Whether a multiple of the interval lies in (before, after]."""
        if not self.ever:
            return False
        start, end = (before.updates, after.updates) if self._updates else (before.samples, after.samples)
        return end // self._interval > start // self._interval


class Until:
    """A place in the run; a pure function of the clock whether it is passed.

    Args:
        place: Any Duration but wall-clock time; None is never passed.
        plan: Converts epochs, tokens and per cents into samples.
    """

    def __init__(self, place: Duration | None, plan: Plan) -> None:
        self._updates = place is not None and place.unit == "updates"
        self._place = None if place is None else place.amount if self._updates else plan.to_samples(place)

    def passed(self, clock: Clock) -> bool:
        """Whether the clock is there, or beyond."""
        return self._place is not None and (clock.updates if self._updates else clock.samples) >= self._place


class WallClock:
    """Due once each time an interval of wall-clock time has passed since the last time it was.

    Args:
        interval: Seconds; None is never due.
    """

    def __init__(self, interval: float | None) -> None:
        self._interval = interval
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether the interval has passed."""
        return self._interval is not None and time.monotonic() - self._last >= self._interval

    def reset(self) -> None:
        """Begin the interval anew."""
        self._last = time.monotonic()
