"""Broadcast, reduce, scatter and gather by binomial trees along the axes of a topology."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.algorithms import Tree
from gradwire.comm.errors import CommError
from gradwire.comm.group import initialized, rank_of, size_of, timeout_of
from gradwire.comm.layout import Portion
from gradwire.comm.pieces import cut
from gradwire.comm.rounds import Round
from gradwire.comm.topology import Topology
from gradwire.comm.transport import Line, Message

_Turn = Callable[[int, int, int], Round]
_TAG = 1 << 29  # far from the tags that others use on the same group
_MOST_ROUNDS = 64
_PATIENCE = timedelta(minutes=30)


def broadcast(
    tensor: Tensor, root: int = 0, topology: Topology | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Give every rank the root's tensor, in place; ⌈log₂d⌉ rounds along each axis of d ranks, slowest links first.

    Args:
        tensor: Contiguous, of the same shape and dtype on every rank.
        root: Rank in the group.
        topology: The axes; one axis of all ranks where None.
        group: The ranks; all where None.

    Raises:
        CommError: No such root, or a tensor that is not contiguous.
        TopologyError: The topology is of another size.
        CollectiveError: A peer died or did not answer in time; names axis, rank and round.
    """
    _along_axes("broadcast", tensor, root, topology, group)


def reduce(
    tensor: Tensor, root: int = 0, topology: Topology | None = None, group: dist.ProcessGroup | None = None
) -> None:
    """Sum the tensors of all ranks into the root's: the broadcast backwards. The others' hold partial sums afterwards.

    Arguments and errors are those of `broadcast`.
    """
    _along_axes("reduce", tensor, root, topology, group)


def scatter(
    tensor: Tensor, root: int = 0, topology: Topology | None = None, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Give every rank its piece of the root's tensor, in its place within `tensor`, whose other parts are undefined.

    The elements are cut as evenly as possible, in order of the ranks. Arguments and errors are those of `broadcast`.

    Returns:
        The rank's piece, a view [about n / P].
    """
    return _along_axes("scatter", tensor, root, topology, group)


def gather(
    tensor: Tensor, root: int = 0, topology: Topology | None = None, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Collect every rank's piece in the root's tensor: the scatter backwards.

    Arguments and errors are those of `broadcast`.

    Returns:
        The rank's own piece, a view.
    """
    return _along_axes("gather", tensor, root, topology, group)


def _along_axes(
    kind: str, tensor: Tensor, root: int, topology: Topology | None, group: dist.ProcessGroup | None
) -> Tensor:
    ranks, rank = size_of(group), rank_of(group)
    topology = topology or Topology(ring=ranks)
    topology.check(ranks)
    if not 0 <= root < ranks:
        raise CommError(f"root is {root}; expected a rank from 0 to {ranks - 1}")
    if not tensor.is_contiguous():
        raise CommError(f"a {kind} works in the tensor's memory, which must be contiguous")
    flat = tensor.detach().view(-1)
    pieces = cut(0, flat.numel(), ranks, 1)
    if initialized() and ranks > 1:
        for axis, position, portion in _parts(kind, topology, rank, root, pieces):
            line = _line(topology, axis, rank, group, flat.device)
            _run(kind, flat, line, position, portion, _TAG + topology.stride(axis) * _MOST_ROUNDS)
    return flat[slice(*pieces[rank])]


def _parts(
    kind: str, topology: Topology, rank: int, root: int, pieces: list[tuple[int, int]]
) -> Iterator[tuple[str, int, Portion]]:
    """The axes along which this rank takes part, in order: with the root's position and what is handed around."""
    here, there = topology.coordinates(rank), topology.coordinates(root)
    outwards = [axis for axis, size in reversed(topology.axes.items()) if size > 1]
    taking_part = [
        axis
        for place, axis in enumerate(outwards)
        if all(here[inner] == there[inner] for inner in outwards[place + 1 :])
    ]
    for axis in taking_part if kind in ("broadcast", "scatter") else reversed(taking_part):
        whole = (0, pieces[-1][1])
        if kind in ("broadcast", "reduce"):
            yield axis, there[axis], Portion(*whole, (whole,), whole)
            continue
        stride = topology.stride(axis)
        first = rank // (stride * topology.axes[axis]) * stride * topology.axes[axis]
        firsts = range(first, first + stride * topology.axes[axis], stride)
        chunks = tuple((pieces[start][0], pieces[start + stride - 1][1]) for start in firsts)
        yield axis, there[axis], Portion(chunks[0][0], chunks[-1][1], chunks, chunks[here[axis]])


def _line(topology: Topology, axis: str, rank: int, group: dist.ProcessGroup | None, device: torch.device) -> Line:
    """The ranks along an axis, reached over the group that they all are in."""
    parent = group or dist.group.WORLD
    assert parent is not None
    members = topology.line(rank, axis)
    timeout = timeout_of(parent, device) or _PATIENCE
    return Line(axis, members, members.index(rank), parent, timeout, device.type == "cuda", addresses=members)


def _run(kind: str, flat: Tensor, line: Line, root: int, portion: Portion, tag: int) -> None:
    tree = Tree()
    turns: dict[str, _Turn] = {
        "broadcast": tree.broadcast,
        "reduce": tree.reduce,
        "scatter": tree.scatter,
        "gather": tree.gather,
    }
    rounds = tree.rounds(line.size)
    for index in range(rounds):
        turn = turns[kind](line.size, root, index)
        sends = _views(flat, turn.sends(line.position), portion)
        targets = _views(flat, turn.receives(line.position), portion)
        rooms = [(peer, torch.empty_like(view)) for peer, view in targets] if turn.add else targets
        what = f"round {index + 1} of {rounds} of the {kind}"
        exchange = line.post(sends, rooms, tag + index, what)
        for place in exchange.arrivals():
            if turn.add:
                targets[place][1].add_(rooms[place][1])
        exchange.sent()


def _views(flat: Tensor, transfers: list[tuple[int, int, int]], portion: Portion) -> list[Message]:
    return [(peer, flat[start:stop]) for peer, first, count in transfers for start, stop in portion.spans(first, count)]
