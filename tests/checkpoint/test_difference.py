import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import Checkpointer, NoCheckpoint, State
from gradwire.checkpoint.difference import Moved, difference, distance
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import DTYPES
from tests.checkpoint.places import place, s3_endpoint  # noqa: F401


def moved(url: str, first: int, second: int) -> dict[str, Moved]:
    store, checkpointer = Store.open(url), Checkpointer(url)
    found = list(difference(store, checkpointer.at(first), store, checkpointer.at(second)))
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def test_each_tensor_is_equal_changed_new_or_gone(place: str) -> None:  # noqa: F811
    checkpointer = Checkpointer(place)
    one, two = torch.arange(6.0).reshape(2, 3), torch.ones(4)
    checkpointer.save(
        State({"model": {"a": one, "b": two, "c": two, "d": two, "e": two}}, {"own": two}), {"updates": 1}
    )
    shifted = one.clone()
    shifted[0, 1] += 3.0
    shifted[1, 2] -= 4.0
    checkpointer.save(
        State({"model": {"a": shifted, "b": two, "c": two.double(), "d": two[:2], "f": two}}, {"own": two * 2}),
        {"updates": 2},
    )
    found = moved(place, 1, 2)
    assert found["shared.model.a"] == Moved(
        "shared.model.a", "changed", "float32", (2, 3), 4.0, 5.0 / math.sqrt(55.0), 2
    )
    assert found["shared.model.b"] == Moved("shared.model.b", "equal", "float32", (4,), 0.0, 0.0, 0)
    assert found["shared.model.c"] == Moved("shared.model.c", "changed", "float64", (4,))
    assert found["shared.model.d"] == Moved("shared.model.d", "changed", "float32", (2,))
    assert found["shared.model.e"].change == "gone"
    assert found["shared.model.f"].change == "new"
    assert found["local[0].own"] == Moved("local[0].own", "changed", "float32", (4,), 1.0, 1.0, 4)
    assert len(found) == 7


def test_equal_snapshots_are_told_without_reading_a_pack(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for update in (1, 2):
        checkpointer.save(State({"model": {"a": torch.arange(100)}}), {"updates": update})
    for pack in (tmp_path / "packs").iterdir():
        pack.unlink()
    assert [each.change for each in moved(str(tmp_path), 1, 2).values()] == ["equal"]


def test_snapshots_of_two_stores_are_compared(tmp_path: Path) -> None:
    stores = []
    for index in (1, 2):
        Checkpointer(tmp_path / str(index)).save(State({"model": {"a": torch.full((3,), index)}}), {"updates": 5})
        stores.append(Store.open(str(tmp_path / str(index))))
    commits = [Checkpointer(tmp_path / str(index)).at(5) for index in (1, 2)]
    (found,) = difference(stores[0], commits[0], stores[1], commits[1])
    assert (found.largest, found.relative, found.elements) == (1.0, 1.0, 3)


def test_more_than_one_batch_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.checkpoint.difference._BATCH", 100)
    checkpointer = Checkpointer(tmp_path)
    for update in (1, 2):
        tensors = {str(index): torch.full((20,), float(update * index)) for index in range(9)}
        checkpointer.save(State({"model": tensors}), {"updates": update})
    found = moved(str(tmp_path), 1, 2)
    assert [found[f"shared.model.{index}"].largest for index in range(9)] == [float(index) for index in range(9)]


def test_a_snapshot_that_goes_meanwhile_is_told_as_that(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    for update in (1, 2):
        checkpointer.save(State({"model": {"a": torch.full((3,), update)}}), {"updates": update})
    store, first, second = Store.open(str(tmp_path)), checkpointer.at(1), checkpointer.at(2)
    store.delete(first.name)
    store.delete(first.parts[0].name)
    with pytest.raises(NoCheckpoint, match="update 1 was removed while it was read"):
        list(difference(store, first, store, second))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_can_be_compared(dtype: torch.dtype) -> None:
    bits = torch.zeros(3 * dtype.itemsize, dtype=torch.uint8)
    before = bits.view(dtype)
    bits = bits.clone()
    bits[0] = 1
    largest, _, elements = distance(before, bits.view(dtype))
    assert elements == 1
    assert largest > 0 or dtype in (torch.float64, torch.complex128, torch.float32, torch.complex64)
    assert distance(before, before) == (0.0, 0.0, 0)


def test_equal_nans_do_not_differ_and_new_ones_do() -> None:
    old, new = torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0])
    assert distance(old, new)[2] == 0
    new[1] = math.nan
    largest, relative, elements = distance(old, new)
    assert math.isnan(largest)
    assert math.isnan(relative)
    assert elements == 1


def test_from_nothing_is_infinitely_far_and_negative_zero_is_another_value() -> None:
    assert distance(torch.zeros(2), torch.tensor([0.0, 2.0])) == (2.0, math.inf, 1)
    assert distance(torch.zeros(2), torch.tensor([0.0, -0.0])) == (0.0, 0.0, 1)
    assert distance(torch.empty(0), torch.empty(0)) == (0.0, 0.0, 0)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.data())
def test_the_distance_is_that_of_float64(values: list[float], data: st.DataObject) -> None:
    before = torch.tensor(values)
    after = torch.tensor(
        data.draw(st.lists(st.floats(-1e6, 1e6, width=32), min_size=len(values), max_size=len(values)))
    )
    largest, relative, elements = distance(before, after)
    gap = after.double() - before.double()
    assert largest == float(gap.abs().max())
    norm = float(before.double().norm())
    if norm and float(gap.norm()):
        assert relative == pytest.approx(float(gap.norm()) / norm)
    assert elements == int((before.view(torch.int32) != after.view(torch.int32)).sum())
