"""Keeping buffers (batch norm's running statistics) equal to the first rank's."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.comm.group import named

_ALIGNMENT = 16  # bytes; every dtype's own size divides it


class BufferBroadcast:
    """Sends all buffers of a module as one message from the first rank to the others.

    Args:
        module: Whose buffers, submodules' included; they may be assigned anew later.
        group: The ranks.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        owners = [(owner._buffers, name) for owner in module.modules() for name in owner._buffers]
        self._places = owners
        self._group = group
        self._views: list[Tensor] = []
        self._arena = torch.empty(0, dtype=torch.uint8)

    @torch.no_grad()
    def __call__(self) -> None:
        """Do it now.

        Raises:
            CollectiveError: A peer died or did not answer in time.
        """
        buffers = [tensor for tensor in (owner.get(name) for owner, name in self._places) if tensor is not None]
        if not buffers:
            return
        self._fit(buffers)
        torch._foreach_copy_(self._views, buffers)
        with named("broadcasting buffers", self._group):
            dist.broadcast(self._arena, group=self._group, group_src=0)
        if dist.get_rank(self._group) != 0:
            torch._foreach_copy_(buffers, self._views)

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
