"""Tensors that lie sharded over ranks (DTensor): this rank's part, what is saved of them, and how that is put back."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from gradwire.checkpoint import Cut, Sharded, Slice, Wanted
from gradwire.checkpoint.sharded import Box

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

log = logging.getLogger("gradwire")
Owner = Callable[["DeviceMesh", int], int]
"""Of a rank of a mesh, the one that saves what it holds, where several hold the same."""
Place = tuple[nn.Module, str]
"""A module, and the name of a parameter in it."""


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Whether it is a DTensor; where there is none yet, its module is not imported for that."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor; shares its memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every rank that holds a part. A collective where it is sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def placed(value: Any, like: Tensor | None) -> Any:
    """A whole tensor, or this rank's cut of it, laid out as another of its shape is; anything else as it comes."""
    if not is_sharded(like) or is_sharded(value) or tuple(getattr(value, "shape", ())) != tuple(like.shape):
        return value
    if isinstance(value, Cut):
        return like_this(value.data, like)
    return like_this(value[tuple(slice(start, stop) for start, stop in _own_box(like))], like)


def like_this(here: Tensor, like: Tensor) -> Tensor:
    """What this rank holds of a tensor that is laid out as another is."""
    here = here.to(local(like).device).contiguous()
    if not is_sharded(like):
        return here
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        here, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def wanted(held: Mapping[str, Tensor]) -> Wanted:
    """What this rank needs of a snapshot: its own part of whatever bears the name of a tensor that it holds a part of.

    Args:
        held: By name, as snapshots have it: of the optimizer's state and of averages too.
    """

    def box(path: tuple[str | int, ...], shape: tuple[int, ...]) -> Box | None:
        names = [name for name in path if isinstance(name, str) and name in held]
        like = held[names[-1]] if names else None
        return _own_box(like) if is_sharded(like) and tuple(like.shape) == shape else None

    return box


def _own_box(tensor: "DTensor") -> Box:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "this rank is none of the mesh's"
    shape, offsets = _box(tensor, coordinate)
    return tuple((start, start + size) for start, size in zip(offsets, shape, strict=True))


def portable(tree: Any, rank: int, owner: Owner) -> Any:
    """A tree with its sharded tensors as what is saved of them.

    Args:
        tree: Dicts and lists of tensors and values.
        rank: This one.
        owner: Maps ranks to those that save what they hold.
    """
    if is_sharded(tree):
        return Sharded(tuple(tree.shape), tuple(_slices(tree, rank, owner)))
    if isinstance(tree, Mapping):
        return {key: portable(value, rank, owner) for key, value in tree.items()}
    if isinstance(tree, list):
        return [portable(value, rank, owner) for value in tree]
    return tree


def is_first_holder(tensor: Tensor, rank: int, owner: Owner) -> bool:
    """Whether of the ranks that hold the same part of a tensor this is the first one."""
    if not is_sharded(tensor):
        return rank == 0
    return owner(tensor.device_mesh, rank) == rank and _is_first(tensor, tensor.device_mesh.get_coordinate() or ())


def _slices(tensor: "DTensor", rank: int, owner: Owner) -> Iterator[Slice]:
    mesh = tensor.device_mesh
    for coordinate in itertools.product(*map(range, mesh.shape)):
        if not _is_first(tensor, coordinate):
            continue
        shape, offsets = _box(tensor, coordinate)
        holder = owner(mesh, int(mesh.mesh[coordinate]))
        data = tensor.to_local() if holder == rank else torch.empty(shape, dtype=tensor.dtype, device="meta")
        yield Slice(offsets, data.detach(), holder)


def _is_first(tensor: "DTensor", coordinate: Sequence[int]) -> bool:
    """Whether a place of the mesh is the first along every dimension over which the tensor is not sharded."""
    return all(place == 0 or not each.is_replicate() for place, each in zip(coordinate, tensor.placements, strict=True))


def _box(tensor: "DTensor", coordinate: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of what lies at a place of the mesh, and where it begins."""
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

    mesh, placements = tuple(tensor.device_mesh.shape), tensor.placements
    shape, offsets = _compute_local_shape_and_global_offset(tuple(tensor.shape), mesh, list(coordinate), placements)
    return tuple(shape), tuple(offsets)


class Watched:
    """Sees the gradients of a sharded parameter before they are summed over ranks: those of the gathered weights.

    Gathered, weights lie in the modules' places as another parameter, which is there when a module is called.

    Args:
        parameter: The parameter.
        places: Where it is used.
        see: What is called with each gradient.
    """

    def __init__(self, parameter: nn.Parameter, places: Sequence[Place], see: Callable[[Tensor], None]) -> None:
        self._parameter = parameter
        self._names = dict(places)
        self._see = see
        self._watched: nn.Parameter | None = None
        self._handles = [module.register_forward_pre_hook(self._begin) for module in self._names]

    def _begin(self, module: nn.Module, _: Any) -> None:
        weight = module._parameters[self._names[module]]
        if weight is None or weight is self._parameter or weight is self._watched or not weight.requires_grad:
            return
        self._watched = weight
        self._handles.append(weight.register_hook(self._see))  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Look no more."""
        for handle in self._handles:
            handle.remove()


def check_dtypes(saved: Mapping[str, Any], live: Mapping[str, Any]) -> None:
    """Say that weights are rounded, or widened, on their way from another precision; refuse those of another kind.

    Raises:
        RuntimeError: of a tensor and the one that it is for, one holds floating-point numbers and the other does not.
    """
    rounded = []
    for name, value in saved.items():
        mine = live.get(name)
        if not isinstance(value, Tensor) or not isinstance(mine, Tensor) or value.dtype == mine.dtype:
            continue
        if value.is_floating_point() != mine.is_floating_point():
            raise RuntimeError(f"{name} is {value.dtype} there and {mine.dtype} here")
        rounded.append(f"{name} from {value.dtype} to {mine.dtype}")
    if rounded:
        log.warning("%d tensors are converted from another precision: %s, …", len(rounded), rounded[0])
