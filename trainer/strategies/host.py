"""The ranks that sum gradients at every update, and what is theirs alone while hosts train by themselves."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.comm import AllReduce, Topology
from gradwire.comm.group import give_up
from gradwire.trainer.optimizers import load_named_state, named_state
from gradwire.trainer.strategies.sharing import share


class Host:
    """This rank's host: consecutive ranks. Creating it is a collective over all ranks.

    Args:
        size: Ranks on each host.

    Attributes:
        group: The ranks of this host.
        first: The first of them.
    """

    def __init__(self, size: int) -> None:
        rank = dist.get_rank()
        self.size = size
        self.first = rank - rank % size
        for first in range(0, dist.get_world_size(), size):
            created = dist.new_group(list(range(first, first + size)))
            if first == self.first:
                assert isinstance(created, dist.ProcessGroup)
                self.group = created

    def gather(self, values: Tensor) -> dict[int, Tensor]:
        """A small CPU tensor of each rank of the host, by rank. A collective."""
        gathered = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(gathered, values, group=self.group)
        return dict(enumerate(gathered, self.first))

    def state_dict(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """What is the same on the host's ranks alone: trained parameters, buffers, optimizer; live ones."""
        tensors = model.state_dict(keep_vars=True)
        return {
            "parameters": {name: each for name, each in model.named_parameters() if each.requires_grad},
            "buffers": {name: each for name, each in tensors.items() if not isinstance(each, nn.Parameter)},
            "optimizer": named_state(model, optimizer),
        }

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any] | None, model: nn.Module, optimizer: Optimizer) -> None:
        """Take what the host's first rank has read; the others have None. A collective over the host."""
        state = share(saved, self.group)
        tensors = model.state_dict(keep_vars=True)
        for name, parameter in model.named_parameters():
            if name in state["parameters"]:
                parameter.copy_(state["parameters"][name])
        for name, values in state["buffers"].items():
            tensors[name].copy_(values)
        load_named_state(model, optimizer, state["optimizer"])

    def leave(self) -> None:
        """Give the group up. A collective."""
        give_up(self.group)


def within_host(all_reduce: AllReduce, group: dist.ProcessGroup) -> AllReduce:
    """Over the ranks of a host: all axes but the last, with their codecs."""
    *inner, _ = all_reduce.topology.axes.items()
    axes = dict(inner) or {"alone": 1}
    codecs = {axis: codec for axis, codec in all_reduce.codecs.items() if axis in axes}
    given = all_reduce
    return AllReduce(Topology(**axes), given.algorithm, codecs, group, given.segment_mb, given.rotate, given.timeout)


def between_hosts(all_reduce: AllReduce) -> AllReduce:
    """Over all ranks, so that each of a host sends its part of what they hold alike; coded between hosts only."""
    given, last = all_reduce, list(all_reduce.topology.axes)[-1]
    codecs = {axis: codec for axis, codec in given.codecs.items() if axis == last}
    algorithm = "two_shot" if given.algorithm in ("native", "auto") else given.algorithm
    return AllReduce(given.topology, algorithm, codecs, given.group, given.segment_mb, False, given.timeout)
