"""Durations that carry their unit: `10_000 samples`, `2e9 tokens`, `500 updates`, `3 epochs`, `10%`, `10 minutes`."""

import difflib
import math
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from gradwire.schedulers.errors import DurationError

Unit = Literal["samples", "tokens", "updates", "epochs", "%", "seconds", "minutes", "hours"]

LARGEST: Final = 2**63 - 1  # what 64 bits hold; no run has as many samples or tokens
_UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
_SINGULAR: Final[dict[str, Unit]] = {unit.removesuffix("s"): unit for unit in _UNITS if unit != "%"}
_SECONDS: Final[dict[str, int]] = {"seconds": 1, "minutes": 60, "hours": 3600}
# What other programs call these units; only to suggest the right word.
_FOREIGN: Final[dict[str, Unit]] = {
    **dict.fromkeys(("step", "steps", "iteration", "iterations", "iter", "iters", "batch", "batches"), "updates"),
    **dict.fromkeys(("example", "examples", "sequence", "sequences", "image", "images"), "samples"),
    **dict.fromkeys(("percent", "pct"), "%"),
    **dict.fromkeys(("s", "sec", "secs"), "seconds"),
    **dict.fromkeys(("m", "min", "mins"), "minutes"),
    **dict.fromkeys(("h", "hr", "hrs"), "hours"),
}
_NUMBER: Final = re.compile(r"([-+]?(?:[\d_.]+(?:e[-+]?\d+)?|nan|inf(?:inity)?))\s*(.*)", re.IGNORECASE)
_FORMS: Final = "'500 updates', '10_000 samples', '2e9 tokens', '3 epochs', '10%' or '10 minutes'"


@dataclass(frozen=True)
class Duration:
    """A length of training with its unit.

    Args:
        amount: How many; not negative. Whole numbers are kept as int.
        unit: samples, tokens, updates, epochs, % (of the run), seconds, minutes or hours.

    Raises:
        DurationError: the amount is no finite number, negative, above 2**63 or 100%, or the unit is unknown.
    """

    amount: int | float
    unit: Unit

    def __post_init__(self) -> None:
        shown = f"{self.amount!r} {self.unit}"
        if self.unit not in _UNITS:
            raise DurationError(f"'{shown}' is not a duration: {_unknown_unit(str(self.amount), str(self.unit))}")
        number = isinstance(self.amount, int | float) and not isinstance(self.amount, bool)
        if not number or self.amount != self.amount or abs(self.amount) == math.inf:
            raise DurationError(f"'{shown}' is not a duration: the amount must be a finite number, as in {_FORMS}")
        if self.amount < 0:
            raise DurationError(f"'{shown}' is not a duration: it must not be negative")
        if self.amount > LARGEST:
            raise DurationError(f"'{shown}' is not a duration: more than 2**63 of anything does not fit into any run")
        if self.unit == "%" and self.amount > 100:
            raise DurationError(f"'{shown}' is not a duration: per cents are of the run, so at most 100%")
        if isinstance(self.amount, float) and self.amount.is_integer():
            object.__setattr__(self, "amount", int(self.amount))

    @classmethod
    def parse(cls, text: "str | Duration") -> "Duration":
        """Read a duration; one that is read already is given back.

        Raises:
            DurationError: it is not of the form `NUMBER UNIT` (or `NUMBER%`); the message offers the right form.
        """
        if isinstance(text, Duration):
            return text
        if not isinstance(text, str):  # YAML gives numbers where the unit was forgotten
            raise DurationError(_no_unit(text))
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            raise DurationError(f"{text!r} is not a duration: write a number and a unit, as in {_FORMS}")
        number, unit = match.groups()
        amount = _amount(number, text)
        if not unit:
            raise DurationError(_no_unit(text.strip()))
        known = _SINGULAR.get(unit.lower().removesuffix("s")) if unit != "%" else "%"
        if known is None:
            raise DurationError(f"{text!r} is not a duration: {_unknown_unit(number, unit)}")
        return cls(amount, known)

    @property
    def is_wall_clock(self) -> bool:
        """Whether this is measured by a clock on the wall rather than in training."""
        return self.unit in _SECONDS

    @property
    def seconds(self) -> float:
        """The length in seconds.

        Raises:
            DurationError: it is not a wall-clock duration.
        """
        if not self.is_wall_clock:
            raise DurationError(f"'{self}' is not wall-clock time: write it in seconds, minutes or hours")
        return float(self.amount * _SECONDS[self.unit])

    def __str__(self) -> str:
        if self.unit == "%":
            return f"{self.amount}%"
        return f"{self.amount} {self.unit.removesuffix('s') if self.amount == 1 else self.unit}"


def _amount(number: str, text: str) -> int | float:
    try:
        return int(number) if number.lstrip("+-").replace("_", "").isdigit() else float(number)
    except ValueError:
        raise DurationError(
            f"{text!r} is not a duration: {number!r} is not a number; write it as in {_FORMS}"
        ) from None


def _no_unit(found: object) -> str:
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return f"{found!r} is not a duration: write a number and a unit, as in {_FORMS}"
    return (
        f"{found} is not a duration: write '{found} updates', '{found} samples', '{found} tokens' or '{found} epochs'; "
        "'10%' of the run and '10 minutes' are durations too"
    )


def _unknown_unit(number: str, unit: str) -> str:
    """What to write instead of a unit that does not exist."""
    word = unit.lower()
    close = difflib.get_close_matches(word, [*_SINGULAR, *_UNITS], n=1)
    right = _FOREIGN.get(word) or (close and _SINGULAR.get(close[0].removesuffix("s")))
    offer = f"did you mean '{number}%'?" if right == "%" else f"did you mean '{number} {right}'?" if right else ""
    return f"'{unit}' is not a unit; {offer or 'units are ' + ', '.join(_UNITS)}"
