"""Keeping buffers (batch norm's running statistics) equal to the first rank's."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _NormBase

from gradwire.comm.group import named, rank_of

_ALIGNMENT = 16  # bytes; every dtype's own size divides it


@dataclass(frozen=True)
class _Place:
    """Where a buffer is found, even after it was assigned anew."""

    owner: nn.Module
    name: str

    @property
    def statistics(self) -> bool:
        """Whether it holds running statistics, which no training backward reads."""
        return isinstance(self.owner, _NormBase)


class BufferBroadcast:
    """Sends all buffers of a module as one message from the first rank to the others.

    Running statistics may be overwritten between a forward and its backward (two forwards, one backward), so they are
    written without autograd taking notice.

    Args:
        module: Whose buffers, submodules' included; they may be assigned anew later.
        group: The ranks.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        places = [_Place(owner, name) for owner in module.modules() for name in owner._buffers]
        self._places = sorted(places, key=lambda place: place.statistics)
        self._group = group
        self._views: list[Tensor] = []
        self._arena = torch.empty(0, dtype=torch.uint8)

    @torch.no_grad()
    def __call__(self) -> None:
        """Do it now.

        Raises:
            CollectiveError: A peer died or did not answer in time.
        """
        found = [(place, place.owner._buffers.get(place.name)) for place in self._places]
        buffers = [tensor for _, tensor in found if tensor is not None]
        if not buffers:
            return
        self._fit(buffers)
        torch._foreach_copy_(self._views, buffers)
        with named("broadcasting buffers", self._group):
            dist.broadcast(self._arena, group=self._group, group_src=0)
        if rank_of(self._group) != 0:
            first = sum(tensor is not None and not place.statistics for place, tensor in found)
            self._write(buffers[:first], self._views[:first])
            with _unsafe_preserve_version_counter(tuple(buffers[first:])):
                self._write(buffers[first:], self._views[first:])

    def _write(self, buffers: list[Tensor], views: list[Tensor]) -> None:
        if buffers:
            torch._foreach_copy_(buffers, views)

    def _fit(self, buffers: list[Tensor]) -> None:
        """Make the arena and its views match the buffers; nothing to do unless one changed its form."""
        if len(buffers) == len(self._views) and all(map(_same_form, buffers, self._views)):
            return
        sizes = [-(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT for buffer in buffers]
        self._arena = torch.zeros(sum(sizes), dtype=torch.uint8, device=buffers[0].device)
        self._views = [
            part[: buffer.nbytes].view(buffer.dtype).view(buffer.shape)
            for part, buffer in zip(torch.split(self._arena, sizes), buffers, strict=True)
        ]


def _same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
