"""What one rank has read, given to the ranks beside it: a tree of tensors and plain values, nothing pickled."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.checkpoint import Slice
from gradwire.checkpoint.tree import decode, encode
from gradwire.comm.group import control_device, rank_of, size_of
from gradwire.comm.replicas import as_bytes


def share(tree: Any, group: dist.ProcessGroup | None) -> Any:
    """The first rank's tree, on every rank of the group. A collective.

    Args:
        tree: As a snapshot holds it; of the other ranks nothing is looked at.
        group: The ranks.
    """
    if size_of(group) == 1:
        return tree
    tensors: list[Tensor] = []
    outline = _sent(_outline(tree, tensors) if rank_of(group) == 0 else b"", group)
    described = json.loads(outline)
    if rank_of(group) != 0:
        tensors = [torch.empty(shape, dtype=getattr(torch, kind)) for kind, shape in described["tensors"]]
    for tensor in tensors:
        _broadcast(as_bytes(tensor), group)
    return decode(described["tree"], tensors.__getitem__, "what the first rank has sent")


def _outline(tree: Any, tensors: list[Tensor]) -> bytes:
    """The tree without what is in its tensors, which are put into the list."""

    def note(_: str, tensor: Tensor | Slice) -> int:
        assert isinstance(tensor, Tensor), "a host's own tensors are whole"
        tensors.append(tensor.detach().cpu().contiguous())
        return len(tensors) - 1

    node = encode(tree, note, "state")
    kinds = [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in tensors]
    return json.dumps({"tree": node, "tensors": kinds}).encode()


def _sent(text: bytes, group: dist.ProcessGroup | None) -> bytes:
    length = torch.tensor([len(text)])
    _broadcast(as_bytes(length), group)
    data = torch.frombuffer(bytearray(text or int(length)), dtype=torch.uint8)
    _broadcast(data, group)
    return data.numpy().tobytes()


def _broadcast(data: Tensor, group: dist.ProcessGroup | None) -> None:
    if data.numel():
        here = data.to(control_device(group))
        dist.broadcast(here, group=group, group_src=0)
        data.copy_(here)
