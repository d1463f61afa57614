"""What `algorithm="auto"` has decided: for each class of sizes a way to reduce, as data to save and repeat."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.comm.errors import CommError

SMALLEST, LARGEST = 2, 28  # classes: 4 bytes to 256 MiB, by powers of two


@dataclass(frozen=True)
class Way:
    """A way to reduce a tensor.

    Args:
        algorithm: As `AllReduce` takes it, "auto" excepted.
        segment_mb: Size of the segments, MiB.
        rotate: Whether segments take the axes in turned orders.
        coded: Whether the axes that have a codec use it.
    """

    algorithm: str
    segment_mb: float = 4.0
    rotate: bool = False
    coded: bool = False

    @property
    def native(self) -> bool:
        """Whether the backend's own all-reduce does it all."""
        return self.algorithm == "native" and not self.coded

    def __str__(self) -> str:
        """`native`, or ALGORITHM[/coded]@SEGMENT_MB[+rotate]."""
        if self.native:
            return "native"
        coded, rotate = "/coded" if self.coded else "", "+rotate" if self.rotate else ""
        return f"{self.algorithm}{coded}@{self.segment_mb:g}{rotate}"

    @classmethod
    def parse(cls, text: str) -> "Way":
        """What `str` wrote.

        Raises:
            CommError: It did not.
        """
        match = re.fullmatch(r"(\w+?)(/coded)?@(\d+(?:\.\d+)?)(\+rotate)?", text)
        if text == "native":
            return NATIVE
        if match is None:
            raise CommError(f"{text!r} is no way to reduce; expected native or ALGORITHM[/coded]@SEGMENT_MB[+rotate]")
        return cls(match[1], float(match[3]), match[4] is not None, match[2] is not None)


NATIVE = Way("native")


@dataclass(frozen=True)
class Choice:
    """How tensors of one class of sizes are reduced.

    Args:
        size_class: Of tensors of about 2**size_class bytes.
        way: How.
        reason: What was compared, for people.
        milliseconds: What it took when it was chosen; the slowest rank's.
    """

    size_class: int
    way: Way
    reason: str = ""
    milliseconds: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes that the class stands for."""
        return 1 << self.size_class

    def state_dict(self) -> dict[str, Any]:
        """All of it, in plain numbers and text."""
        return {
            "size_class": self.size_class,
            "way": str(self.way),
            "reason": self.reason,
            "milliseconds": self.milliseconds,
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "Choice":
        """What `state_dict` gave.

        Raises:
            CommError: It did not.
        """
        way = Way.parse(str(state["way"]))
        return cls(int(state["size_class"]), way, str(state["reason"]), float(state["milliseconds"]))


def size_class(nbytes: int) -> int:
    """The power of two that is nearest, by ratio, within 4 B to 256 MiB: the class of a tensor of so many bytes."""
    lower = max(nbytes, 1).bit_length() - 1
    nearest = lower + (nbytes * nbytes > 1 << (2 * lower + 1))
    return min(max(nearest, SMALLEST), LARGEST)
