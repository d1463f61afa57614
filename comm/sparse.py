"""Sparse gradients (embedding tables): every rank gathers the others' rows instead of a dense sum."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.comm.group import gather_rows, named, size_of


@dataclass(frozen=True, eq=False)
class SparseParameter:
    """A parameter whose gradient is expected as sparse COO."""

    name: str
    parameter: nn.Parameter


def sparse_names(module: nn.Module) -> set[str]:
    """Names of the parameters that `module` declares to have sparse gradients (`sparse=True`)."""
    return {
        f"{prefix}.weight" if prefix else "weight"
        for prefix, child in module.named_modules()
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse
    }


def local_values(parameters: Sequence[SparseParameter]) -> Iterator[tuple[str, Tensor]]:
    """Name and flat values of each gradient that this rank has: those of its rows, or all where it is dense."""
    for each in parameters:
        gradient = _coalesced(each.parameter.grad)
        if gradient is not None:
            values = gradient.values() if gradient.is_sparse else gradient
            yield each.name, values.detach().flatten()


@torch.no_grad()
def reduce_sparse(parameters: Sequence[SparseParameter], scale: float, group: dist.ProcessGroup | None) -> None:
    """Replace each gradient by its sum over ranks times `scale`, coalesced. A collective.

    A parameter without a gradient on all ranks keeps none. One whose gradient is dense on any rank is summed densely.

    Raises:
        CollectiveError: A peer died or did not answer in time.
    """
    gradients = [_coalesced(each.parameter.grad) for each in parameters]
    kinds = torch.tensor([_kind(gradient) for gradient in gradients], dtype=torch.int64)
    for each, gradient, kind in zip(parameters, gradients, gather_rows(kinds, group).unbind(1), strict=True):
        present, rows, dense = kind.unbind(1)
        if not present.any():
            continue
        with named(f"reducing the sparse gradient of {each.name}", group):
            if dense.any():
                each.parameter.grad = _sum_dense(gradient, each.parameter, group).mul_(scale)
            else:
                total = _gather(gradient, each.parameter, rows.tolist(), group)
                each.parameter.grad = torch.mul(total, scale).coalesce()


def _coalesced(gradient: Tensor | None) -> Tensor | None:
    return gradient.coalesce() if gradient is not None and gradient.is_sparse else gradient


def _kind(gradient: Tensor | None) -> list[int]:
    """Whether there is a gradient, its rows, and whether it is dense."""
    if gradient is None:
        return [0, 0, 0]
    return [1, gradient.values().shape[0], 0] if gradient.is_sparse else [1, 0, 1]


def _sum_dense(gradient: Tensor | None, parameter: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    if gradient is None:
        dense = torch.zeros_like(parameter)
    else:
        dense = gradient.to_dense() if gradient.is_sparse else gradient.clone()
    dense = dense.contiguous()
    dist.all_reduce(dense, group=group)
    return dense


def _gather(gradient: Tensor | None, parameter: Tensor, rows: Sequence[int], group: dist.ProcessGroup | None) -> Tensor:
    """The sum of all ranks' gradients; `rows` counts theirs. Messages are padded to the longest."""
    indices = torch.zeros(max(rows), dtype=torch.int64, device=parameter.device)
    values = torch.zeros(max(rows), *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device)
    if gradient is not None:
        count = gradient.values().shape[0]
        indices[:count], values[:count] = gradient.indices()[0], gradient.values()
    all_indices, all_values = _all_gather(indices, group), _all_gather(values, group)
    return torch.sparse_coo_tensor(
        torch.cat([part[:count] for part, count in zip(all_indices, rows, strict=True)])[None],
        torch.cat([part[:count] for part, count in zip(all_values, rows, strict=True)]),
        parameter.shape,
    ).coalesce()


def _all_gather(tensor: Tensor, group: dist.ProcessGroup | None) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(size_of(group))]
    if tensor.numel():
        dist.all_gather(gathered, tensor, group=group)
    return gathered
