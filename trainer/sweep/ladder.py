"""Rungs at which trials wait until it is known which of them go on: brackets of successive halving.

A rung is judged once every trial of its bracket has reached it, so who goes on is a function of values and numbers
alone: not of the order in which trials arrive, nor of how many run at once, nor of who was killed on the way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Climb:
    """How far a trial has come.

    Args:
        number: Its number.
        values: What it was judged by at each rung that it has reached.
        state: `open`, `pruned` at the last of those rungs, or `over` for another reason.
    """

    number: int
    values: tuple[float, ...]
    state: Literal["open", "pruned", "over"] = "open"


@dataclass(frozen=True)
class Bracket:
    """Trials that climb the same rungs.

    Args:
        first: The first one's number; the others' follow.
        size: How many they are.
        height: Rungs below the end of the run.
    """

    first: int
    size: int
    height: int


@dataclass(frozen=True)
class Ladder:
    """Brackets one behind the other, and from the first again after the last.

    Args:
        factor: Each rung lies this many times as far as the one below, and lets one trial in so many pass.
        heights: Rungs of each bracket.
    """

    factor: int
    heights: tuple[int, ...]

    @classmethod
    def hyperband(cls, factor: int, rungs: int, brackets: int | None) -> "Ladder":
        """From the highest bracket, whose trials are most and shortest at first, to trials that run through."""
        heights = tuple(range(rungs, -1, -1))
        return cls(factor, heights[:brackets])

    @property
    def trials(self) -> int:
        """Trials of all brackets."""
        return sum(map(self._size, self.heights))

    def rungs(self, number: int) -> tuple[float, ...]:
        """The shares of its run at which a trial waits, rising."""
        height = next(each for each in self._brackets() if number < each.first + each.size).height
        return tuple(float(self.factor) ** (rung - height) for rung in range(height))

    def verdicts(self, climbs: Sequence[Climb], planned: int, *, minimize: bool) -> Mapping[int, bool]:
        """Of trials that wait at a rung, whether they go on; those that still have to wait are not among them.

        Args:
            climbs: All trials by number, from the first on.
            planned: Trials of the whole sweep.
            minimize: Whether less is better.
        """
        found: dict[int, bool] = {}
        for bracket in self._brackets():
            if bracket.first >= len(climbs):
                return found
            last = min(bracket.first + bracket.size, planned)
            if len(climbs) >= last:
                found |= self._judged(list(climbs[bracket.first : last]), bracket.height, minimize)
        return found

    def _judged(self, field: list[Climb], height: int, minimize: bool) -> Mapping[int, bool]:
        found: dict[int, bool] = {}
        size, sign = len(field), 1 if minimize else -1
        for rung in range(height):
            if any(each.state == "open" and len(each.values) <= rung for each in field):
                break
            there = [each for each in field if len(each.values) > rung]
            candidates = [each for each in there if each.state != "pruned" or len(each.values) > rung + 1]
            ranked = sorted(candidates, key=lambda each: (sign * each.values[rung], each.number))
            field = ranked[: max(1, size // self.factor ** (rung + 1))]
            found |= {each.number: each in field for each in ranked if self._waits(each, rung)}
        return found

    @staticmethod
    def _waits(climb: Climb, rung: int) -> bool:
        return climb.state == "open" and len(climb.values) == rung + 1

    def _brackets(self) -> Iterator[Bracket]:
        first = 0
        while True:
            for height in self.heights:
                bracket = Bracket(first, self._size(height), height)
                yield bracket
                first += bracket.size

    def _size(self, height: int) -> int:
        """As many as let each bracket take about the same updates."""
        most = self.heights[0]
        trials: int = (most + 1) * self.factor**height
        return -(-trials // (height + 1))
