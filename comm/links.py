"""What a link can carry, and how fast a codec works: the constants of the cost model."""

import math
import re
from dataclasses import dataclass

from gradwire.comm.errors import CommError


@dataclass(frozen=True)
class Link:
    """What joins a rank to the others along an axis. Messages of a rank in one round follow one another.

    Args:
        bandwidth: Bytes per second in each direction, for one rank.
        latency: Seconds that a message takes beside its bytes.
        directions: 2 where a rank has a link of its own to each side (a wired ring), 1 where all goes through one.
    """

    bandwidth: float
    latency: float
    directions: int = 1

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and 0 <= self.latency < math.inf):
            raise CommError(
                f"a link has {self.bandwidth!r} bytes/s and a latency of {self.latency!r} s; "
                "expected a bandwidth above 0 and a finite latency of at least 0"
            )
        if self.directions not in (1, 2):
            raise CommError(f"a link has {self.directions!r} directions; expected 1 or 2")

    @classmethod
    def parse(cls, text: str) -> "Link":
        """From text such as "200mbit,1ms" or "25gbit,30us": bits per second in each direction, and the latency.

        Raises:
            CommError: It is no such text.
        """
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit,(\d+(?:\.\d+)?)(us|ms|s)", text.replace(" ", "").lower())
        if match is None:
            raise CommError(f"{text!r} is no link; expected a rate and a latency such as 200mbit,1ms or 25gbit,30us")
        return cls(float(match[1]) * _RATES[match[2]] / 8, float(match[3]) * _TIMES[match[4]])

    def shared(self, ranks: int) -> "Link":
        """Each rank's share where `ranks` of them send through this link at the same time."""
        return Link(self.bandwidth / ranks, self.latency, self.directions)

    def seconds(self, nbytes: float, messages: float = 1) -> float:
        """What messages of so many bytes in all take, one after the other."""
        return messages * self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class CodecSpeed:
    """How fast values go through a codec.

    Args:
        encode: Bytes of float32 values per second; infinite: free.
        decode: The same, for reading payloads.
    """

    encode: float = math.inf
    decode: float = math.inf


FREE = CodecSpeed()
_RATES = {"k": 1e3, "m": 1e6, "g": 1e9}  # bits
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
