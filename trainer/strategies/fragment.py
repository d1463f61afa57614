"""Parameters that hosts synchronize together: what is sent of them, and what codecs lost of it."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.comm import AllReduce, CommError, Work, compressions
from gradwire.comm.buckets import Slot, lay_out
from gradwire.comm.residuals import Residuals
from gradwire.comm.telemetry import Traffic
from gradwire.trainer.strategies.outer import Member, mix


class Fragment:
    """Some parameters and their outer gradient, which is averaged over the hosts.

    Args:
        members: Names and parameters.
        all_reduce: Sums over all ranks of all hosts; the ranks of a host hold the same.
        ranks: How many there are.
    """

    def __init__(self, members: Sequence[Member], all_reduce: AllReduce, ranks: int) -> None:
        self._buckets = lay_out(members, (sys.maxsize, sys.maxsize))
        self._all_reduce = all_reduce
        self._ranks = ranks
        self._residuals = Residuals(all_reduce, self._buckets)
        self._works: list[Work] | None = None
        slots: list[Slot] = [slot for bucket in self._buckets for slot in bucket.slots]
        self.names = tuple(slot.name for slot in slots)
        self.parameters: list[Tensor] = [slot.parameter for slot in slots]
        self.gradients = [slot.view for slot in slots]
        self.rounds = 0
        compressions.prepare(all_reduce.codecs.values(), self._buckets)

    @torch.no_grad()
    def send(self, outer: list[Tensor]) -> None:
        """Begin to average the outer gradient, outer − own parameters, over the hosts. A collective."""
        torch._foreach_copy_(self.gradients, outer)
        torch._foreach_sub_(self.gradients, self.parameters)
        torch._foreach_div_(self.gradients, self._ranks)
        seed = self.rounds * len(self._buckets)
        started = [self._residuals.start(bucket, seed + bucket.index, self.rounds) for bucket in self._buckets]
        self._works = [work for work in started if work is not None]
        self.rounds += 1

    def receive(self) -> dict[str, Traffic]:
        """Wait until `gradients` hold the average; what it cost, by axis, where it was waited for now."""
        if self._works is None:
            return {}
        works, self._works = self._works, None
        for work in works:
            work.wait()
        self._residuals.reduced()
        self._residuals.settle(True)
        return self._all_reduce.take_traffic()

    def put(self, gradients: Mapping[str, Tensor]) -> None:
        """Have a saved average, as if it had been received."""
        with torch.no_grad():
            for name, view in zip(self.names, self.gradients, strict=True):
                view.copy_(gradients[name])

    def take_outer(self, outer: list[Tensor], share: float) -> None:
        """Mix the parameters with the outer ones; `share` of what they were stays."""
        mix(self.parameters, outer, share)

    def state_dict(self) -> dict[str, Any]:
        """What codecs lost here, by parameter."""
        return self._residuals.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from this rank's own `state_dict()`; False where it is of other axes, codecs or parameters."""
        try:
            self._residuals.load_state_dict(state)
        except CommError:
            return False
        return True

    def load_sum(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from all fragments' states of all ranks of another arrangement: the sum of the residuals stays.

        Raises:
            CommError: There is nothing that would carry it.
        """
        self._residuals.load_sum(states)
