"""Tensors in slices: written by the ranks that hold them, read as whole ones by any number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointWriteError,
    DamagedCheckpoint,
    Sharded,
    Slice,
    State,
    UnsupportedState,
    load_weights,
)
from gradwire.checkpoint.loading import load_tree
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.sharded import Box, Cut, assembled, not_made_up, overlaps
from gradwire.checkpoint.snapshot import Part, shared_places
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import StoredTensor
from gradwire.checkpoint.tree import decode, encode

WHOLE = torch.arange(60.0).reshape(6, 10)


def sharded(whole: Tensor, ranks: int, here: int, axis: int = 0) -> Sharded:
    """Rank `here`'s view of a tensor that is cut along an axis."""
    slices, start = [], 0
    for rank, piece in enumerate(whole.tensor_split(ranks, axis)):
        offsets = [0] * whole.dim()
        offsets[axis] = start
        start += piece.shape[axis]
        slices.append(Slice(tuple(offsets), piece if rank == here else torch.empty_like(piece, device="meta"), rank))
    return Sharded(tuple(whole.shape), tuple(slices))


def _save(rank: int, url: str, steps: int) -> None:
    ranks = dist.get_world_size()
    with Checkpointer(url, group=dist.group.WORLD) as store:
        for update in range(steps):
            parts = {"rows": sharded(WHOLE + update, ranks, rank), "columns": sharded(WHOLE, ranks, rank, 1)}
            store.save(State({"model": {**parts, "plain": torch.ones(3)}}, {"own": rank}), {"updates": update})


def _restore(rank: int, url: str) -> None:
    with Checkpointer(url, group=dist.group.WORLD) as store:
        shared, everyone, _ = store.restore_resized()
    assert torch.equal(shared["model"]["rows"], WHOLE + 1) and torch.equal(shared["model"]["columns"], WHOLE)
    assert [own["own"] for own in everyone] == [0, 1, 2, 3]


def test_what_four_ranks_hold_in_slices_is_whole_for_two_and_for_one(ranks: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    ranks(4, _save, url, 2)
    ranks(2, _restore, url)
    weights, commit = load_weights(url)
    assert torch.equal(weights["rows"], WHOLE + 1) and torch.equal(weights["plain"], torch.ones(3))
    outline = read_outline(Store.open(url), commit)
    assert [each.name for each in outline.tensors if "columns" in each.name] == [
        f"shared.model.columns@0,{start}" for start in (0, 3, 6, 8)
    ]
    assert {each.part.rank for each in outline.tensors if "columns" in each.name} == {0, 1, 2, 3}


def test_a_slice_that_did_not_change_is_not_written_again(ranks: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    ranks(4, _save, url, 2)
    store = Store.open(url)
    first, second = [read_outline(store, commit) for commit in Checkpointer(url).commits()]
    packs = [{(t.name, t.part.packs[t.stored.chunks[0].pack].name) for t in each.tensors} for each in (first, second)]
    assert {name for name, _ in packs[0] & packs[1]} == {
        "shared.model.plain",
        *(f"shared.model.columns@0,{start}" for start in (0, 3, 6, 8)),
    }


def _disagree(rank: int, url: str) -> None:
    state = State({"model": {"rows": sharded(WHOLE[:, : 10 - rank], 2, rank)}})
    store = Checkpointer(url, group=dist.group.WORLD)
    with pytest.raises(CheckpointWriteError, match="differ in names, types or shapes"):
        store.save(state, {"updates": 0})


def test_ranks_whose_slices_are_of_different_tensors_are_told(ranks: Any, tmp_path: Path) -> None:
    ranks(2, _disagree, str(tmp_path / "store"))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, int], ...]]]:
    """A shape, and the boxes of a grid that makes it up."""
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    edges = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    boxes: list[tuple[tuple[int, int], ...]] = [()]
    for axis in edges:
        boxes = [(*box, pair) for box in boxes for pair in zip(axis, axis[1:] or axis, strict=False)]
    return shape, boxes


@given(cuts(), st.data())
def test_boxes_of_a_grid_make_a_tensor_up_and_no_others_do(cut: Any, data: st.DataObject) -> None:
    shape, boxes = cut
    assert not not_made_up(shape, boxes)
    filled = [box for box in boxes if all(a < b for a, b in box)]
    if not filled:
        return
    odd = data.draw(st.sampled_from(filled))
    assert "elements" in not_made_up(shape, [box for box in boxes if box is not odd])
    if len(filled) > 1:
        other = next(box for box in filled if box is not odd)
        doubled = [other if box is odd else box for box in boxes]
        assert not_made_up(shape, doubled)
    (start, stop), *rest = odd
    beyond = ((start + shape[0], stop + shape[0]), *rest)
    assert "lie in the tensor" in not_made_up(shape, [beyond if box is odd else box for box in boxes])


def test_overlapping_slices_with_the_right_number_of_elements_are_refused() -> None:
    boxes = [((0, 2), (0, 2)), ((1, 3), (1, 3)), ((0, 1), (2, 3))]
    assert not_made_up((3, 3), boxes) == "the slices [0:2, 0:2] and [1:3, 1:3] overlap"


def test_slices_without_elements_lie_in_their_tensor_too() -> None:
    whole = ((0, 4), (0, 2))
    assert not_made_up((4, 2), [whole, ((4, 4), (0, 2))]) == ""
    for empty in (((4, 4),), ((0, 0), (0, 5)), ((5, 5), (0, 2))):
        assert "does not lie in the tensor" in not_made_up((4, 2), [whole, empty])


def test_slices_that_do_not_make_up_their_tensor_are_not_saved(tmp_path: Path) -> None:
    lacking = Sharded((6, 10), sharded(WHOLE, 2, 0).slices[:1])
    with pytest.raises(UnsupportedState, match=r"model\.rows: the tensor of \[6, 10\] has 60 elements, .* have 30"):
        encode({"model": {"rows": lacking}}, lambda path, tensor: 0, "shared")


@pytest.mark.parametrize(
    "node",
    [
        {"sharded": []},
        {"sharded": [[2], [[[0], 0]], 1]},
        {"sharded": [[-2], [[[0], 0]]]},
        {"sharded": [[2], [[[0], "0"]]]},
        {"sharded": [[2], [[0, 0]]]},
        {"sharded": [[2], []]},
        {"sharded": [[2], [[[1], 0]]]},
        {"sharded": [[2], [[[0, 0], 0]]]},
        {"sharded": [[3], [[[0], 0], [[2], 1]]]},
    ],
)
def test_damaged_nodes_of_slices_are_refused(node: Any) -> None:
    kinds = (StoredTensor(torch.float32, (2,), ()), StoredTensor(torch.int64, (1,), ()))
    part = Part(0, (), kinds, (0, 1), None, None)
    with pytest.raises(DamagedCheckpoint):
        load_tree(Store.open("memory://slices"), shared_places([part], "here"), node, "here")


def test_slices_where_none_are_expected_are_refused() -> None:
    with pytest.raises(DamagedCheckpoint, match=r"here: a\.1 is in slices"):
        decode({"dict": [["a", [1, {"sharded": [[2], [[[0], 0]]]}]]]}, lambda index: torch.zeros(2), "here")


@given(st.data())
def test_slices_come_together_in_any_box_and_order(data: st.DataObject) -> None:
    pieces = data.draw(st.permutations([((3, 0), WHOLE[3:]), ((0, 4), WHOLE[:3, 4:]), ((0, 0), WHOLE[:3, :4])]))
    rows, columns = (sorted(data.draw(st.tuples(*2 * [st.integers(0, size)]))) for size in WHOLE.shape)
    box = ((rows[0], rows[1]), (columns[0], columns[1]))
    needed = [(at, part) for at, part in pieces if overlaps(_box(at, part), box)]
    assert torch.equal(assembled(box, WHOLE.dtype, needed), WHOLE[slice(*rows), slice(*columns)])


def _box(offsets: tuple[int, ...], part: Tensor) -> Box:
    return tuple((start, start + size) for start, size in zip(offsets, part.shape, strict=True))


def test_what_is_not_wanted_is_not_read(ranks: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    ranks(4, _save, url, 1)
    store = Checkpointer(url)
    outline = read_outline(Store.open(url), store.at(0))
    last = next(part for part in outline.parts if part.rank == 3)
    for pack in last.packs:
        (tmp_path / "store" / pack.name).unlink()
    with pytest.raises(DamagedCheckpoint):
        store.restore_resized(0)
    shared, _, _ = Checkpointer(url).restore_resized(
        0, lambda path, shape: ((1, 3), (0, 6)) if "s" in path[-1] else None
    )
    for name in ("rows", "columns"):
        cut = shared["model"][name]
        assert isinstance(cut, Cut) and cut.shape == (6, 10) and cut.box == ((1, 3), (0, 6))
        assert torch.equal(cut.data, WHOLE[1:3, :6])
    assert torch.equal(shared["model"]["plain"], torch.ones(3))
