"""How many hosts a run has: a number, or anything from MIN to MAX."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Hosts:
    """What `launch.hosts` asks for.

    Attributes:
        least: Fewer do not train.
        most: More are not taken.
        elastic: Whether hosts may come and go while the run goes on (MIN:MAX).
    """

    least: int
    most: int
    elastic: bool = False

    @classmethod
    def of(cls, value: int | str) -> "Hosts":
        """Read `launch.hosts`.

        Raises:
            ValueError: it is neither a number of hosts nor MIN:MAX.
        """
        if isinstance(value, int):
            return cls(value, value)
        if (match := re.fullmatch(r"(\d+):(\d+)", value, re.ASCII)) is None:
            raise ValueError(f"must be a number of hosts, or MIN:MAX such as 1:4, found {value!r}")
        least, most = int(match[1]), int(match[2])
        if least < 1:
            raise ValueError(f"a run needs a host: MIN must be at least 1, found {value}")
        if least > most:
            raise ValueError(f"MIN must not be above MAX, found {value}: write {most}:{least}")
        if most == 1:
            raise ValueError(f"hosts come and go where there may be two at least, found {value}: write 1, or 1:2")
        return cls(least, most, elastic=True)

    def __str__(self) -> str:
        return f"{self.least}:{self.most}" if self.elastic else str(self.most)
