"""Making replicas equal, and proving that they are."""

import hashlib
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn

from gradwire.comm.errors import ReplicaMismatch
from gradwire.comm.group import gather_rows, named, rank_of, size_of


def broadcast_parameters(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Give every rank the first rank's parameters and buffers. A collective.

    Raises:
        ReplicaMismatch: The ranks' modules differ in names, shapes, dtypes or in what is trainable.
        CollectiveError: A peer died or did not answer in time.
    """
    if size_of(group) == 1:
        return
    _check_structure(module, group)
    with named("broadcasting parameters", group), torch.no_grad():
        works = [(tensor, *_broadcast(tensor, group)) for _, tensor in _tensors(module) if tensor.numel()]
        for tensor, sent, work in works:
            work.wait()
            if sent is not tensor:
                tensor.copy_(sent)


def _broadcast(tensor: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, dist.Work]:
    sent = tensor if tensor.is_contiguous() else tensor.contiguous()
    work = dist.broadcast(as_bytes(sent), group=group, group_src=0, async_op=True)
    assert work is not None
    return sent, work


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor of any dtype, uint8[n], sharing its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    yield from module.named_buffers()


def _check_structure(module: nn.Module, group: dist.ProcessGroup | None) -> None:
    lines = [
        f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.stride()} {trainable}"
        for name, tensor, trainable in [
            *((name, parameter, parameter.requires_grad) for name, parameter in module.named_parameters()),
            *((name, buffer, False) for name, buffer in module.named_buffers()),
        ]
    ]
    digest = int.from_bytes(hashlib.blake2b("\n".join(lines).encode(), digest_size=7).digest())
    found = gather_rows(torch.tensor([digest, len(lines)]), group).tolist()
    if any(row != found[0] for row in found):
        others = [rank for rank, row in enumerate(found) if row != found[0]]
        raise ReplicaMismatch(
            f"{_ranks(others)} built another module than rank 0: names, shapes, dtypes, memory layouts and what is "
            f"trainable must be the same everywhere. This rank, {rank_of(group)}, has {len(lines)} tensors, rank 0 has "
            f"{found[0][1]}; print them on both and compare"
        )


def replicas_hash(module: nn.Module) -> str:
    """A digest of this rank's parameters and buffers with their names, 16 hex digits; nothing is sent."""
    whole = xxhash.xxh3_64()
    for name, tensor in _tensors(module):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        whole.update(_digest(tensor).to_bytes(8))
    return whole.hexdigest()


def check_replicas(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Raise unless parameters and buffers have the same bits on every rank. A collective.

    Raises:
        ReplicaMismatch: Names the first tensor that differs, and the ranks that hold other bits than most.
        CollectiveError: A peer died or did not answer in time.
    """
    check_tensors(list(_tensors(module)), group)


def check_tensors(tensors: Sequence[tuple[str, Tensor]], group: dist.ProcessGroup | None = None) -> None:
    """Raise unless the named tensors have the same bits on every rank. A collective.

    Raises:
        ReplicaMismatch: Names the first that differs, and the ranks that hold other bits than most.
        CollectiveError: A peer died or did not answer in time.
    """
    if size_of(group) == 1:
        return
    digests = torch.tensor([_signed(_digest(tensor)) for _, tensor in tensors], dtype=torch.int64)
    counts = gather_rows(torch.tensor([len(tensors)]), group).flatten().tolist()
    if len(set(counts)) > 1:
        raise ReplicaMismatch(f"ranks hold different numbers of tensors: {counts}, by rank")
    found = gather_rows(digests, group)
    differs = (found != found[0]).any(dim=0).nonzero().flatten().tolist()
    if differs:
        name, column = tensors[differs[0]][0], found[:, differs[0]].tolist()
        raise ReplicaMismatch(
            f"{name} has other bits on {_ranks(_minority(column))} than on {_ranks(_majority(column))}; "
            f"{len(differs)} of {len(tensors)} tensors differ, this is the first. Something changed a replica outside "
            "the reduced gradients: a random number, a buffer, or a parameter that only some ranks train"
        )


def _digest(tensor: Tensor) -> int:
    return xxhash.xxh3_64_intdigest(as_bytes(tensor.cpu().contiguous()).numpy().data)


def _signed(digest: int) -> int:
    return digest - (1 << 64) if digest >> 63 else digest


def _common(column: Sequence[int]) -> int:
    return max(column, key=lambda value: (column.count(value), value == column[0]))


def _majority(column: Sequence[int]) -> list[int]:
    return [rank for rank, value in enumerate(column) if value == _common(column)]


def _minority(column: Sequence[int]) -> list[int]:
    return [rank for rank, value in enumerate(column) if value != _common(column)]


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
