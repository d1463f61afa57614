"""torch.distributed.checkpoint on a store, in one process."""

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointWriteError,
    DamagedCheckpoint,
    NoCheckpoint,
    State,
    StoreError,
    StoreFull,
    UnsupportedState,
    WriterFenced,
)
from gradwire.checkpoint.dcp import Reader, Writer
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def a_state(update: int = 1) -> dict[str, Any]:
    torch.manual_seed(update)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 / update, betas=(0.9, 0.99))
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    return {
        "model": weights,
        "optimizer": moments,
        "run": {"update": update, "loss": 0.1 + update, "name": "a", "none": None, "big": 2**70, "yes": True},
        "history": [1.5, [2, float("inf")], ("x", -0.0)],
        "half": torch.randn(7).bfloat16(),
        "empty": torch.empty(0, 3),
    }


def blank(state: Any) -> Any:
    """The same structure with other values."""
    if isinstance(state, Tensor):
        return torch.zeros_like(state) - 1
    if isinstance(state, dict):
        return {name: blank(value) for name, value in state.items()}
    return [blank(value) for value in state] if isinstance(state, list) else None


def failure(error: CheckpointException, rank: int = 0) -> BaseException:
    return error.failures[rank][0]


def save(url: Path, state: dict[str, Any], update: int) -> None:
    torch_dcp.save(state, storage_writer=Writer(url, update))


def load(url: Path, like: dict[str, Any], update: int | None = None) -> dict[str, Any]:
    target = blank(like)
    torch_dcp.load(target, storage_reader=Reader(url, update))
    return target


def failing_load(url: Path, like: dict[str, Any], update: int | None = None) -> BaseException:
    with pytest.raises(CheckpointException) as caught:
        load(url, like, update)
    return failure(caught.value)


def test_a_state_comes_back_in_the_same_bits_and_types(tmp_path: Path) -> None:
    save(tmp_path, a_state(), 1)
    assert same(load(tmp_path, a_state()), a_state())


def test_the_newest_snapshot_is_loaded_or_the_one_asked_for(tmp_path: Path) -> None:
    for update in (1, 2, 30):
        save(tmp_path, a_state(update), update)
    assert same(load(tmp_path, a_state()), a_state(30))
    for update in (1, 2, 30):
        assert same(load(tmp_path, a_state(), update), a_state(update))
    assert [commit.update for commit in Checkpointer(tmp_path).commits()] == [1, 2, 30]


def test_one_writer_serves_all_saves_with_the_update_as_checkpoint_id(tmp_path: Path) -> None:
    writer, reader = Writer(tmp_path), Reader(tmp_path)
    for update in ("10", "20"):
        torch_dcp.save(a_state(int(update)), checkpoint_id=update, storage_writer=writer)
    assert writer.commit is not None
    assert (writer.commit.update, writer.commit.epoch, writer.commit.sequence) == (20, 1, 3)
    target = blank(a_state())
    torch_dcp.load(target, checkpoint_id="10", storage_reader=reader)
    assert same(target, a_state(10))
    assert reader.commit is not None
    assert reader.commit.update == 10
    with pytest.raises(StoreError, match="'latest' is not the number of an update"):
        torch_dcp.save(a_state(), checkpoint_id="latest", storage_writer=writer)


@pytest.mark.parametrize("one_writer", [True, False])
def test_a_run_that_went_back_abandons_the_updates_since(one_writer: bool, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for update in (10, 20, 30, 15, 25):
        torch_dcp.save(
            a_state(update), checkpoint_id=str(update), storage_writer=writer if one_writer else Writer(tmp_path)
        )
    assert [commit.update for commit in Checkpointer(tmp_path).commits()] == [10, 15, 25]


@pytest.mark.parametrize("one_writer", [True, False])
def test_what_did_not_change_is_not_written_again(one_writer: bool, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    frozen = torch.randn(300_000)
    sizes = []
    for update in (1, 2, 3):
        torch_dcp.save(
            {"frozen": frozen, "moving": torch.full((1000,), float(update))},
            checkpoint_id=str(update),
            storage_writer=writer if one_writer else Writer(tmp_path),
        )
        sizes.append(sum(pack.stat().st_size for pack in (tmp_path / "packs").iterdir()))
    assert sizes[0] > 1_000_000
    assert sizes[2] - sizes[0] < 20_000
    target = {"frozen": torch.zeros(300_000), "moving": torch.zeros(1000)}
    torch_dcp.load(target, storage_reader=Reader(tmp_path))
    assert torch.equal(target["frozen"], frozen)


def test_plans_that_a_planner_kept_from_an_earlier_save_do(tmp_path: Path) -> None:
    """They name the snapshot that was continued then, which may be gone: what it has in the store is not relied on."""
    writer, frozen = Writer(tmp_path), torch.randn(100_000)
    for update in range(1, 6):
        planner = torch_dcp.DefaultSavePlanner(enable_plan_caching=update > 1)
        state = {"frozen": frozen, "moving": torch.full((5,), float(update))}
        torch_dcp.save(state, checkpoint_id=str(update), storage_writer=writer, planner=planner)
        target = {"frozen": torch.zeros(100_000), "moving": torch.zeros(5)}
        torch_dcp.load(target, storage_reader=Reader(tmp_path))
        assert same(target, state)
    parts = [read_part(Store.open(str(tmp_path)), commit.parts[0]) for commit in Checkpointer(tmp_path).commits()]
    assert set(parts[0].packs) & set(parts[1].packs)
    assert not set(parts[0].packs) & set(parts[4].packs)


def test_a_writer_can_be_handed_to_another_process(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    torch_dcp.save(a_state(1), checkpoint_id="1", storage_writer=writer)
    handed_on = pickle.loads(pickle.dumps(Writer(tmp_path)))  # noqa: S301
    torch_dcp.save(a_state(2), checkpoint_id="2", storage_writer=handed_on)
    assert [commit.update for commit in Checkpointer(tmp_path).commits()] == [1, 2]


def test_a_part_of_the_state_loads_alone(tmp_path: Path) -> None:
    save(tmp_path, a_state(), 1)
    target = {"run": {"name": ""}, "model": {"0.weight": torch.zeros(5, 6)}}
    torch_dcp.load(target, storage_reader=Reader(tmp_path))
    assert target["run"] == {"name": "a"}
    assert torch.equal(target["model"]["0.weight"], a_state()["model"]["0.weight"])  # type: ignore[arg-type]


def test_the_state_can_be_built_from_the_snapshot_alone(tmp_path: Path) -> None:
    save(tmp_path, a_state(), 1)
    assert same(_load_state_dict_from_keys(storage_reader=Reader(tmp_path))["run"], a_state()["run"])
    found = _load_state_dict_from_keys("model", storage_reader=Reader(tmp_path))
    assert same(found, {"model": dict(a_state()["model"])})


def test_a_state_of_the_planner_that_does_not_flatten_comes_back(tmp_path: Path) -> None:
    state = {"w": torch.randn(3), "settings": {"a": [1, 2.5], "b": None}}
    planner = torch_dcp.DefaultSavePlanner(flatten_state_dict=False)
    torch_dcp.save(state, storage_writer=Writer(tmp_path, 1), planner=planner)
    target: dict[str, Any] = {"w": torch.zeros(3), "settings": None}
    torch_dcp.load(
        target,
        storage_reader=Reader(tmp_path),
        planner=torch_dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
    )
    assert same(target, state)


def test_a_tensor_is_loaded_into_a_view_and_saved_from_one(tmp_path: Path) -> None:
    whole = torch.randn(8, 10)
    save(tmp_path, {"view": whole.t()[::2]}, 1)
    target = torch.zeros(16, 10)
    torch_dcp.load({"view": target[:10:2, :8]}, storage_reader=Reader(tmp_path))
    assert torch.equal(target[:10:2, :8], whole.t()[::2])
    assert not target[1::2].any()


class Custom:
    pass


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("custom", Custom(), r"run\.custom is a .*Custom, which a checkpoint cannot hold"),
        ("dtype", torch.float32, r"run\.dtype is a torch\.dtype"),
        ("bytes", b"abc", r"run\.bytes is a builtins\.bytes"),
        ("deep", [1, [{2}]], r"run\.deep\[1\]\[0\] is a builtins\.set"),
        ("pair", (torch.ones(2), 1), r"run\.pair\[0\] is a tensor of shape \(2,\) inside a value"),
        ("sparse", torch.eye(3).to_sparse(), r"tensor of torch\.float32 with layout torch\.sparse_coo"),
    ],
)
def test_what_is_neither_tensor_nor_json_is_refused_by_name(
    name: str, value: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointException) as caught:
        save(tmp_path, {"w": torch.ones(4), "run": {name: value}}, 1)
    assert isinstance(failure(caught.value), UnsupportedState)
    with pytest.raises(UnsupportedState, match=message):
        raise failure(caught.value)
    assert isinstance(failing_load(tmp_path, {"w": torch.ones(4)}), NoCheckpoint)


class Pickling(torch_dcp.DefaultSavePlanner):
    lookup_object = None  # type: ignore[assignment]


def test_a_planner_that_only_hands_out_pickles_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="run is no tensor, and Pickling hands it out pickled"):
        torch_dcp.save({"run": 1}, storage_writer=Writer(tmp_path, 1), planner=Pickling())


def test_nothing_in_the_store_is_a_pickle(tmp_path: Path) -> None:
    save(tmp_path, a_state(), 1)
    (part,) = (tmp_path / "parts").iterdir()
    values = dict(dict(dict(json.loads(part.read_bytes())["local"]["dict"])["dcp"]["dict"])["values"]["dict"])
    assert ["value", {"int": hex(2**70)}] in values["run.big"]["dict"]
    packs = sum(file.stat().st_size for file in (tmp_path / "packs").iterdir())
    assert packs <= sum(tensor.numel() * tensor.dtype.itemsize for tensor in _tensors(a_state()))


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [tensor for value in tree.values() for tensor in _tensors(value)] if isinstance(tree, dict) else []


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    save(tmp_path, a_state(), 1)
    files = [file for folder in ("packs", "parts", "commits") for file in sorted((tmp_path / folder).iterdir())]
    for file in files:
        sound = file.read_bytes()
        for at in range(0, len(sound), max(1, len(sound) // 12)):
            file.chmod(0o600)
            file.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :])
            if file.name == "0" * 19 + "1":
                continue  # the claim of an epoch; no snapshot needs it
            assert isinstance(failing_load(tmp_path, a_state()), DamagedCheckpoint), (file, at)
        file.write_bytes(sound)
    assert same(load(tmp_path, a_state()), a_state())


def test_a_damaged_part_of_the_newest_snapshot_gives_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, a_state(1), 1)
    save(tmp_path, a_state(2), 2)
    newest = Checkpointer(tmp_path).commits()[-1]
    (tmp_path / newest.parts[0].name).unlink()
    assert same(load(tmp_path, a_state()), a_state(1))
    assert isinstance(failing_load(tmp_path, a_state(), 2), DamagedCheckpoint)


def test_a_failed_write_fails_the_save_and_the_last_snapshot_stays(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    torch_dcp.save(a_state(1), checkpoint_id="1", storage_writer=writer)
    with (
        mock.patch.object(Store, "put_content", side_effect=StoreFull("no space left")),
        pytest.raises(CheckpointException, match="no space left") as caught,
    ):
        torch_dcp.save(a_state(2), checkpoint_id="2", storage_writer=writer)
    assert isinstance(failure(caught.value), StoreFull)
    assert same(load(tmp_path, a_state()), a_state(1))
    torch_dcp.save(a_state(3), checkpoint_id="3", storage_writer=writer)
    assert same(load(tmp_path, a_state()), a_state(3))


def test_a_writer_that_was_overtaken_cannot_commit_any_more(tmp_path: Path) -> None:
    zombie = Writer(tmp_path)
    torch_dcp.save(a_state(1), checkpoint_id="1", storage_writer=zombie)
    save(tmp_path, a_state(2), 2)
    with pytest.raises(CheckpointException) as caught:
        torch_dcp.save(a_state(3), checkpoint_id="3", storage_writer=zombie)
    assert isinstance(failure(caught.value), WriterFenced)
    assert same(load(tmp_path, a_state()), a_state(2))


def test_an_asynchronous_save_holds_what_was_there_when_it_began(tmp_path: Path) -> None:
    state, held = a_state(), threading.Event()
    put = Store.put_content

    def later(self: Store, *arguments: Any) -> bool:
        held.wait(240)
        return put(self, *arguments)

    with mock.patch.object(Store, "put_content", later):
        saving: Any = torch_dcp.async_save(state, storage_writer=Writer(tmp_path, 1))
        for tensor in _tensors(state):
            tensor.detach().zero_()
        state["run"]["update"] = 99
        held.set()
        saving.result()
    assert same(load(tmp_path, a_state()), a_state())


def test_a_snapshot_of_another_kind_says_how_it_is_restored(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(State({"model": {"w": torch.ones(3)}}), {"updates": 1})
    error = failing_load(tmp_path, {"w": torch.ones(3)})
    assert isinstance(error, CheckpointError)
    assert "was not written through torch.distributed.checkpoint" in str(error)


def test_a_missing_snapshot_is_told_by_its_own_error(tmp_path: Path) -> None:
    assert isinstance(failing_load(tmp_path, {"w": torch.ones(3)}), NoCheckpoint)
    save(tmp_path, {"w": torch.ones(3)}, 4)
    assert "it has updates: 4" in str(failing_load(tmp_path, {"w": torch.ones(3)}, 5))
    with pytest.raises(NoCheckpoint):
        Reader(tmp_path, 5).read_metadata().state_dict_metadata  # noqa: B018


def test_a_save_without_an_update_and_one_of_ranks_on_their_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match="give the update that is saved"):
        torch_dcp.save({"w": torch.ones(3)}, storage_writer=Writer(tmp_path))
    with pytest.raises(CheckpointWriteError, match="leave use_collectives at True"):
        torch_dcp.save({"w": torch.ones(3)}, storage_writer=Writer(tmp_path, 1), use_collectives=False)


def test_metrics_are_in_the_commit(tmp_path: Path) -> None:
    writer = Writer(os.fspath(tmp_path), 1, metrics={"eval/loss": 0.25}, writer="me")
    torch_dcp.save({"w": torch.ones(3)}, storage_writer=writer)
    (commit,) = Checkpointer(tmp_path).commits()
    assert commit == writer.commit
    assert (commit.metrics, commit.writer.identity) == ({"eval/loss": 0.25}, "me")
    assert commit.captured == {"shared": (), "local": ("dcp",)}
