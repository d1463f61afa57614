"""Virtual time: when each rank is ready, and when its links are free."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradwire.comm.lines import Transfers
from gradwire.comm.links import FREE, CodecSpeed, Link
from gradwire.comm.rounds import Indices

Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Clocks:
    """One clock a rank and link.

    A rank begins a round when it is ready and its link is free. Its messages follow one another on the link (one queue
    for each direction that the link has), and so do those that it receives; they count as arrived when their sender has
    sent its last of the round.

    Args:
        links: By axis.
        speeds: Of the codec on an axis; free where not given.
        slowness: How many times longer each rank takes, float64 [P].
    """

    links: Mapping[str, Link]
    speeds: Mapping[str, CodecSpeed]
    slowness: Seconds
    free: dict[str, Seconds] = field(default_factory=dict)  # when each rank's link along an axis is, [P]
    sent: dict[str, Indices] = field(default_factory=dict)  # bytes by axis and rank, [P]

    def exchange(self, ready: Seconds, axis: str, moves: Transfers, nbytes: Indices) -> Seconds:
        """When every rank is done with a round of transfers of `nbytes` [M], if it is `ready` [P] for it."""
        ranks, link = len(ready), self.links[axis]
        start = np.maximum(ready, self.free.get(axis, np.zeros(ranks)))
        cost = (link.latency + nbytes / link.bandwidth) * self.slowness[moves.sources]
        sent = start + self._queued(link, moves.sources, moves.forwards, cost, ranks)
        arrived = start + self._queued(link, moves.targets, moves.forwards, cost, ranks)
        done = np.maximum(sent, arrived)
        np.maximum.at(done, moves.targets, sent[moves.sources])
        taking_part = np.zeros(ranks, dtype=bool)
        taking_part[moves.sources] = taking_part[moves.targets] = True
        self.free[axis] = np.where(taking_part, done, self.free.get(axis, 0.0))
        total = np.bincount(moves.sources, nbytes, ranks).astype(np.int64)
        self.sent[axis] = self.sent.get(axis, np.zeros(ranks, dtype=np.int64)) + total
        return np.where(taking_part, done, ready)

    def encode(self, ready: Seconds, axis: str, elements: Indices) -> Seconds:
        """When every rank has encoded so many elements [P]."""
        return ready + 4 * elements / self.speeds.get(axis, FREE).encode * self.slowness

    def decode(self, ready: Seconds, axis: str, elements: Indices) -> Seconds:
        """When every rank has decoded so many elements [P]."""
        return ready + 4 * elements / self.speeds.get(axis, FREE).decode * self.slowness

    @staticmethod
    def _queued(link: Link, ranks: Indices, forwards: Indices, cost: Seconds, size: int) -> Seconds:
        """Seconds until the last message of each rank is through, [P]."""
        if link.directions == 1:
            return np.bincount(ranks, cost, size).astype(np.float64)
        return np.maximum(*(np.bincount(ranks, cost * (forwards == way), size) for way in (True, False)))
