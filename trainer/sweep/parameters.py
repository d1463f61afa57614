"""What a parameter of a sweep can be: an interval of numbers, evenly spaced numbers, or a choice of anything.

Each maps the unit interval onto its values (`at`) and back (`unit`), so that whoever places points in a cube needs to
know nothing about parameters; and each knows the distribution that Optuna's samplers are told.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_INSIDE = 0.381966  # a place within an interval that is no round number in it


@dataclass(frozen=True)
class Interval:
    """Real numbers, or whole ones, from `low` to `high`, both included.

    Args:
        low: Smallest value.
        high: Largest value.
        log: Whether equal factors are equally likely, not equal differences.
        whole: Whether the values are integers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def points(self) -> Sequence[Any] | None:
        """All values, where they can be counted out."""
        return range(int(self.low), int(self.high) + 1) if self.whole else None

    @property
    def examples(self) -> list[Any]:
        """Values that show whether the parameter is right: both ends, and one between them."""
        return list(dict.fromkeys([self.low, self.high, self.at(_INSIDE)]))

    def at(self, unit: float) -> Any:
        """The value at a place of the unit interval."""
        low, high = (self.low, self.high) if not self.whole else (self.low - 0.5, self.high + 0.5)
        value = low * (high / low) ** unit if self.log else low + (high - low) * unit
        value = min(max(round(value) if self.whole else value, self.low), self.high)
        return int(value) if self.whole else value

    def unit(self, value: Any) -> float:
        """The place of a value in the unit interval."""
        low, high = (self.low, self.high) if not self.whole else (self.low - 0.5, self.high + 0.5)
        return math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)

    def distribution(self) -> "BaseDistribution":
        """As Optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def text(self, value: Any) -> str:
        """A value as an override writes it."""
        return repr(value)

    def exact(self, value: Any) -> Any:
        """The value that a sampler's answer stands for."""
        return int(value) if self.whole else float(value)


@dataclass(frozen=True)
class Steps:
    """Evenly spaced numbers.

    Args:
        points: All values, rising; at least two.
    """

    points: Sequence[Any]

    @property
    def examples(self) -> list[Any]:
        """Values that show whether the parameter is right: the ends and their neighbour."""
        return list(dict.fromkeys([self.points[0], self.points[1], self.points[-1]]))

    def at(self, unit: float) -> Any:
        """The value at a place of the unit interval."""
        return self.points[min(int(unit * len(self.points)), len(self.points) - 1)]

    def unit(self, value: Any) -> float:
        """The place of a value in the unit interval: the middle of its share."""
        return (self._nearest(value) + 0.5) / len(self.points)

    def distribution(self) -> "BaseDistribution":
        """As Optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        low, high, step = self.points[0], self.points[-1], self.points[1] - self.points[0]
        if isinstance(low, int):
            return IntDistribution(low, high, step=step)
        return FloatDistribution(low, high, step=float(f"{step:.12g}"))  # as it was written, or Optuna moves the end

    def text(self, value: Any) -> str:
        """A value as an override writes it."""
        return repr(value)

    def exact(self, value: Any) -> Any:
        """The value that a sampler's answer stands for."""
        return self.points[self._nearest(value)]

    def _nearest(self, value: Any) -> int:
        low, step = self.points[0], self.points[1] - self.points[0]
        nearest = round(float((value - low) / step))
        return min(max(nearest, 0), len(self.points) - 1)


@dataclass(frozen=True)
class Choice:
    """One of several values without order: numbers, texts, lists, options of a config group.

    Args:
        points: The values; what is no number, text, truth or null as an override writes it.
        texts: Each as an override writes it.
    """

    points: Sequence[Any]
    texts: Sequence[str]

    @property
    def examples(self) -> list[Any]:
        """Every value: each may be wrong by itself."""
        return list(self.points)

    def at(self, unit: float) -> Any:
        """The value at a place of the unit interval."""
        return self.points[min(int(unit * len(self.points)), len(self.points) - 1)]

    def unit(self, value: Any) -> float:
        """The place of a value in the unit interval: the middle of its share."""
        return (self._place(value) + 0.5) / len(self.points)

    def distribution(self) -> "BaseDistribution":
        """As Optuna has it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(tuple(self.points))

    def text(self, value: Any) -> str:
        """A value as an override writes it."""
        return self.texts[self._place(value)]

    def exact(self, value: Any) -> Any:
        """The value that a sampler's answer stands for."""
        return self.points[self._place(value)]

    def _place(self, value: Any) -> int:
        return next(i for i, point in enumerate(self.points) if (type(point), point) == (type(value), value))


Domain = Interval | Steps | Choice
