"""Parameters that are cut anywhere are saved as slices that make them up."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradwire.checkpoint import Cut
from gradwire.checkpoint.sharded import assembled
from gradwire.trainer.strategies.stretches import Stretch, boxes, portable

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_stretches_of_all_ranks_make_the_tensor_up(shape: tuple[int, ...], data: st.DataObject) -> None:
    numel = math.prod(shape)
    cuts = sorted(data.draw(st.lists(st.integers(0, numel), max_size=4)))
    bounds = tuple(zip([0, *cuts], [*cuts, numel], strict=True))
    whole = torch.arange(numel, dtype=torch.float32).reshape(shape)
    saved = []
    for rank in range(len(bounds)):
        stretch = Stretch(shape, bounds, rank)
        saved.append(stretch.saved(stretch.of(whole)))
        assert stretch.size == stretch.of(whole).numel()
    for rank, sharded in enumerate(saved):
        assert [each.offsets for each in sharded.slices] == [each.offsets for each in saved[0].slices]
        assert all(each.data.is_meta == (each.rank != rank) for each in sharded.slices)
        sharded.check("weight")
    slices = [(each.offsets, each.data) for sharded in saved for each in sharded.slices if not each.data.is_meta]
    everything = tuple((0, size) for size in shape)
    assert assembled(everything, torch.float32, slices).reshape(shape).equal(whole)


@given(SHAPES, st.data())
def test_rows_of_a_snapshot_are_enough(shape: tuple[int, ...], data: st.DataObject) -> None:
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, math.prod(shape))] * 2)))
    whole = torch.arange(math.prod(shape)).reshape(shape)
    stretch = Stretch(shape, ((0, start), (start, stop)), 1)
    rows = tuple(slice(*bounds) for bounds in stretch.rows)
    assert stretch.of(Cut(shape, stretch.rows, whole[rows])).equal(stretch.of(whole))


def test_a_stretch_is_whole_rows_with_parts_of_rows_around_them() -> None:
    assert list(boxes((4, 3), 2, 11)) == [((0, 2), (1, 1)), ((1, 0), (2, 3)), ((3, 0), (1, 2))]
    assert list(boxes((4, 3), 4, 5)) == [((1, 1), (1, 1))]
    assert list(boxes((7,), 2, 5)) == [((2,), (3,))]
    assert list(boxes((), 0, 1)) == [((), ())]
    assert list(boxes((4, 3), 6, 6)) == []


def test_what_is_no_stretch_is_saved_as_it_is() -> None:
    stretch = Stretch((2, 2), ((0, 3), (3, 4)), 0)
    step, buffer = torch.tensor(5.0), torch.zeros(3)
    saved = portable({"weight": {"step": step, "moment": torch.ones(3)}, "buffer": buffer}, {"weight": stretch})
    assert saved["weight"]["step"] is step
    assert saved["buffer"] is buffer
    moment = saved["weight"]["moment"]
    assert moment.shape == (2, 2)
    assert [_rows(each.data) for each in moment.slices if each.rank == 0] == [[[1.0, 1.0]], [[1.0]]]


def _rows(data: Tensor) -> list[list[float]]:
    rows: list[list[float]] = data.tolist()
    return rows
