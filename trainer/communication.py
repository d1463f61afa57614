"""What reducing the gradients costs, gathered for the log, and whether the codecs are exact enough."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gradwire.comm.telemetry import Traffic
from gradwire.trainer.strategies import Strategy

EVERY = 10  # updates between two looks at the codecs' errors


@dataclass(frozen=True)
class TooCoarse:
    """An axis whose codec loses more than it may.

    Args:
        axis: Which.
        error: Relative error of one update, mean over the ranks.
        tolerance: What the codec is good for.
    """

    axis: str
    error: float
    tolerance: float


class Communication:
    """Reads the strategy's meters.

    Every tenth update is read alone, so that what is decided from it depends on that update and nothing before: a
    resumed run decides the same.

    Args:
        strategy: Whose.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._exposed: float | None = None
        self._axes: dict[str, _Sum] = {}
        self._updates = 0
        self._unread = 0

    def before(self, update: int) -> None:
        """Update `update`, counted from 0, is about to begin."""
        if _is_looked_at(update):
            self._read()

    def after(self, update: int, *, skipped: bool) -> list[TooCoarse]:
        """It is over: the axes that should use another codec from now on, the same on every rank. A collective."""
        self._updates += 1
        self._unread += 1
        if not _is_looked_at(update):
            return []
        traffic = self._read()
        tolerances = self._strategy.tolerances()
        return [] if skipped or not tolerances else self._too_coarse(tolerances, traffic)

    def metrics(self) -> dict[str, float]:
        """Means of the updates since the last call, of this rank; what was not measured is left out."""
        self._read()
        updates, axes, exposed = max(self._updates, 1), self._axes, self._exposed
        self._updates, self._axes, self._exposed = 0, {}, None
        found = {} if exposed is None else {"comm/exposed_ms": 1000 * exposed / updates}
        for axis, total in axes.items():
            found |= {f"comm/{axis}/{key}": value for key, value in total.metrics(updates).items()}
        return found

    def _read(self) -> Mapping[str, Traffic]:
        cost = self._strategy.cost()
        if cost.exposed is not None:
            self._exposed = (self._exposed or 0.0) + cost.exposed
        for axis, traffic in cost.axes.items():
            self._axes.setdefault(axis, _Sum()).add(traffic, self._unread)
        self._unread = 0
        return cost.axes

    def _too_coarse(self, tolerances: Mapping[str, float], traffic: Mapping[str, Traffic]) -> list[TooCoarse]:
        nothing = float("nan")
        errors = [traffic[axis].error if axis in traffic else None for axis in tolerances]
        mine = torch.tensor([nothing if error is None else error for error in errors], dtype=torch.float64)
        means = torch.stack(self._strategy.gather(mine)).nanmean(dim=0).tolist()  # of the same values in the same order
        looked = zip(tolerances.items(), means, strict=True)
        return [TooCoarse(axis, mean, tolerance) for (axis, tolerance), mean in looked if mean > tolerance]


@dataclass
class _Sum:
    """Traffic of several readings."""

    sent: int = 0
    uncompressed: int = 0
    encoding: float = 0.0
    decoding: float = 0.0
    waiting: float = 0.0
    error: float = 0.0
    measured: int = 0

    def add(self, traffic: Traffic, updates: int) -> None:
        self.sent += traffic.sent
        self.uncompressed += traffic.uncompressed
        self.encoding += traffic.encoding
        self.decoding += traffic.decoding
        self.waiting += traffic.waiting
        if traffic.error is not None:
            self.error += updates * traffic.error
            self.measured += updates

    def metrics(self, updates: int) -> dict[str, float]:
        """By the last part of the key."""
        found = {"bytes": self.sent / updates, "wait_ms": 1000 * self.waiting / updates}
        if self.uncompressed not in (0, self.sent):
            found["uncompressed_bytes"] = self.uncompressed / updates
        if self.encoding > 0:
            found |= {"encode_ms": 1000 * self.encoding / updates, "decode_ms": 1000 * self.decoding / updates}
        if self.measured:
            found["error"] = self.error / self.measured
        return found


def _is_looked_at(update: int) -> bool:
    return (update + 1) % EVERY == 0
