"""The batch sizes of a whole run, as plateaus of equal updates: long runs are counted without walking every update."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass


def whole_batch(size: float, granule: int) -> int:
    """A batch size rounded to whole granules (halves to the even count), at least one."""
    return max(granule, granule * round(size / granule))


@dataclass(frozen=True)
class Trajectory:
    """Plateaus of updates with equal batch sizes, one after the other.

    Args:
        starts: Samples seen before each plateau; rising from 0.
        firsts: Updates done before each plateau; rising from 0.
        sizes: Batch size on each plateau.
        samples: Samples of the whole run; the last update may be cut by it.
        updates: Updates of the whole run.
    """

    starts: tuple[int, ...]
    firsts: tuple[int, ...]
    sizes: tuple[int, ...]
    samples: int
    updates: int

    @property
    def largest(self) -> int:
        """The largest batch that occurs."""
        return max(min(size, self.samples - start) for size, start in zip(self.sizes, self.starts, strict=True))

    @property
    def smallest(self) -> int:
        """The smallest batch that occurs; a run's end may cut the last one."""
        last = (self.samples - self.starts[-1]) % self.sizes[-1] or self.sizes[-1]
        return min(*self.sizes[:-1], last) if len(self.sizes) > 1 else last

    def samples_after(self, updates: float) -> int:
        """Samples seen after so many updates, a part of an update rounded to whole samples.

        Past the end the last plateau goes on.
        """
        if updates >= self.updates:
            return self.samples + round((updates - self.updates) * self.sizes[-1])
        plateau = bisect_right(self.firsts, updates) - 1
        seen = self.starts[plateau] + round((updates - self.firsts[plateau]) * self.sizes[plateau])
        return min(seen, self.samples)

    def updates_after(self, samples: int) -> float:
        """Updates done when so many samples have been seen, with the part of an update that is under way."""
        if samples >= self.samples:
            return self.updates + (samples - self.samples) / self.sizes[-1]
        plateau = bisect_right(self.starts, samples) - 1
        return self.firsts[plateau] + (samples - self.starts[plateau]) / self.sizes[plateau]


def trace(
    value_at: Callable[[int], float],
    monotone_until: Callable[[int], float],
    *,
    granule: int = 1,
    samples: int | None = None,
    updates: float = math.inf,
) -> Trajectory:
    """Follow a batch-size schedule from the first sample on.

    Args:
        value_at: Batch size, before it is rounded to granules, of the update that starts after so many samples.
        monotone_until: Up to which sample (exclusive) sizes only rise or only fall, seen from a sample.
        granule: Batches are multiples of so many samples.
        samples: Where to stop; the last update is cut to fit. None for no such limit.
        updates: How many updates to follow at most; a fraction cuts the last update. One of the limits must be given.
    """
    starts, firsts, sizes = [], [], []
    seen, done, until = 0, 0, 0.0
    value, guess = value_at(0), _Guess(granule)
    while done < updates and (samples is None or seen < samples):
        size = whole_batch(value, granule)
        left = updates - done if samples is None else min(updates - done, -((seen - samples) // size))
        if seen >= until:
            until = monotone_until(seen)
        most = math.ceil(min(left, max(until - seen, 1) / size))
        count, following = _equal_updates(value_at, granule, seen, size, most, guess.updates(seen, value, size))
        starts.append(seen)
        firsts.append(done)
        sizes.append(size)
        seen, done = seen + count * size, done + count
        value = value_at(seen) if following is None else following
    if done > updates:  # the last update is only a part of one
        cut = round((done - updates) * sizes[-1])
        seen -= cut
        if cut == sizes[-1] and seen:  # less than half a sample: none
            done -= 1
            if firsts[-1] == done:
                starts.pop(), firsts.pop(), sizes.pop()
    return Trajectory(tuple(starts), tuple(firsts), tuple(sizes), seen if samples is None else min(seen, samples), done)


class _Guess:
    """How many updates a plateau will have, from the values at its start and at that of the plateau before it."""

    def __init__(self, granule: int) -> None:
        self._half = granule / 2
        self._start, self._value = 0, math.nan

    def updates(self, start: int, value: float, size: int) -> float:
        """The guess for the plateau that starts here: at least 1, and infinite where nothing is known."""
        rise, way = value - self._value, start - self._start
        self._start, self._value = start, value
        if not rise or math.isnan(rise):  # the first plateau
            return math.inf
        if value == size:  # stairs, so far: as wide as the last one
            return max(way // size, 1)
        edge = size + self._half if rise > 0 else size - self._half
        return max((edge - value) / rise * way // size + 1, 1)


def _equal_updates(
    value_at: Callable[[int], float], granule: int, start: int, size: int, most: int, guess: float
) -> tuple[int, float | None]:
    """How many updates from here on, up to `most`, have this size, and the value after them if it was looked at.

    Sizes are monotone as far as `most` reaches. Looks at the guess first, then in growing steps from there until the
    end of the plateau lies between two places, then halves.
    """
    low, high, step = 1, most + 1, 1  # equal at low, not at high
    probe, after = int(min(guess + 1, most)), None  # one more than guessed: it is the next plateau's first
    while high - low > 1:
        value = value_at(start + (probe - 1) * size)
        if max(granule, granule * round(value / granule)) == size:
            low, probe = probe, probe + step
        else:
            high, after, probe = probe, value, probe - step
        if not low < probe < high:
            probe = (low + high) // 2
        else:
            step *= 2
    return low, after


def last_not_negative(excess: Callable[[int], float], low: int, high: int) -> int:
    """The last whole number at which a falling function is not negative.

    Interpolates (false position in the Illinois variant) and halves at every third step, so that a function with steps
    in it is searched as surely as a smooth one.

    Args:
        excess: The function; not negative at `low`, negative at `high`.
        low: Below the place.
        high: Above it.
    """
    above, below = excess(low), excess(high)
    side = turn = 0
    while high - low > 1:
        share = 0.5 if turn % 3 == 2 else above / (above - below)
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        value = excess(middle)
        if value >= 0:
            low, above, below = middle, value, below / 2 if side > 0 else below
        else:
            high, below, above = middle, value, above / 2 if side < 0 else above
        side, turn = (1 if value >= 0 else -1), turn + 1
    return low
