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
    size_at: Callable[[int], int],
    monotone_until: Callable[[int], float],
    *,
    samples: int | None = None,
    updates: float = math.inf,
) -> Trajectory:
    """Follow a batch-size schedule from the first sample on.

    Args:
        size_at: Batch size of the update that starts after so many samples; at least 1.
        monotone_until: Up to which sample (exclusive) sizes only rise or only fall, seen from a sample.
        samples: Where to stop; the last update is cut to fit. None for no such limit.
        updates: How many updates to follow at most; a fraction cuts the last update. One of the limits must be given.
    """
    starts, firsts, sizes = [], [], []
    seen, done, count = 0, 0, 1
    while done < updates and (samples is None or seen < samples):
        size = size_at(seen)
        left = updates - done if samples is None else min(updates - done, -((seen - samples) // size))
        ahead = max(monotone_until(seen) - seen, 1)
        count = _equal_updates(size_at, seen, size, math.ceil(min(left, ahead / size)), count)
        starts.append(seen)
        firsts.append(done)
        sizes.append(size)
        seen, done = seen + count * size, done + count
    if done > updates:  # the last update is only a part of one
        cut = round((done - updates) * sizes[-1])
        seen -= cut
        if cut == sizes[-1] and seen:  # less than half a sample: none
            done -= 1
            if firsts[-1] == done:
                starts.pop(), firsts.pop(), sizes.pop()
    return Trajectory(tuple(starts), tuple(firsts), tuple(sizes), seen if samples is None else min(seen, samples), done)


def _equal_updates(size_at: Callable[[int], int], start: int, size: int, most: int, guess: int) -> int:
    """How many updates from here on, up to `most`, have this size; sizes are monotone as far as that reaches."""

    def equal(count: int) -> bool:
        return size_at(start + (count - 1) * size) == size

    if equal(most):
        return most
    low, high, step = 1, most, 1  # equal at low, not at high
    probe = min(guess, most - 1)
    while low < probe < high:  # from the guess on in growing steps, until the end of the plateau lies between two
        if equal(probe):
            low, probe = probe, probe + step
        else:
            high, probe = probe, probe - step
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if equal(middle) else (low, middle)
    return low


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
