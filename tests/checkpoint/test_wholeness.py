"""One rule says what a whole snapshot is: whatever a store holds, restoring, `verify` and `fsck` agree on it."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torch_dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwire.checkpoint import Checkpointer, DamagedCheckpoint, State, UnsupportedState
from gradwire.checkpoint.commit import Commit, seal
from gradwire.checkpoint.dcp import Reader, Writer
from gradwire.checkpoint.dcp.parts import own_tree, slice_entry, value_entry
from gradwire.checkpoint.dcp.weights import load_sharded_weights
from gradwire.checkpoint.document import dump
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.fsck import check
from gradwire.checkpoint.sharded import Sharded, Slice
from gradwire.checkpoint.snapshot import Part, PartWriter, read_part
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.tensors import StoredTensor
from gradwire.checkpoint.verification import verify
from tests.checkpoint.places import newest_objects

WEIGHT = torch.arange(6.0).reshape(3, 2)


def saved(folder: Path) -> Path:
    checkpointer = Checkpointer(folder, keep_last=9)
    for update in (1, 2):
        cut = Sharded((3, 2), (Slice((0, 0), WEIGHT[:2] * update, 0), Slice((2, 0), WEIGHT[2:] * update, 0)))
        model = {"cut": cut, "w": WEIGHT + update, "mask": WEIGHT > 2, "empty": torch.empty(0, 3)}
        state = State({"model": model, "lr": 0.5, "seed": 2**70}, {"residual": (WEIGHT, {0: [None, "a"]})})
        checkpointer.save(state, {"updates": update, "seconds": 0.5}, {"eval/loss": 1.0 / update})
    return folder


def saved_by_torch(folder: Path) -> Path:
    writer = Writer(folder)
    for update in (1, 2):
        state = {"model": {"w": WEIGHT + update, "list": [WEIGHT, 3]}, "lr": 0.5}
        torch_dcp.save(state, storage_writer=writer, checkpoint_id=str(update))
    return folder


def restored(folder: Path) -> Commit:
    return Checkpointer(folder).restore()[1]


def restored_by_torch(folder: Path) -> Commit:
    reader = Reader(folder)
    try:
        described = reader.read_metadata().state_dict_metadata
    except UnsupportedState:  # not of torch's kind any more
        return restored(folder)
    wanted: dict[str, Any] = {
        name: torch.empty(found.size, dtype=found.properties.dtype)
        for name, found in described.items()
        if hasattr(found, "chunks")
    }
    try:
        torch_dcp.load(wanted, storage_reader=Reader(folder, reader.commit.update if reader.commit else None))
    except torch_dcp.CheckpointException as error:
        raise error.failures[0][0] from error
    assert reader.commit is not None
    return reader.commit


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Commit]]] = {
    "plain": (saved, restored),
    "torch": (saved_by_torch, restored_by_torch),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save(tmp_path_factory.mktemp(kind)) for kind, (save, _) in KINDS.items()}


def forge_commit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest commit's document, and seal it again."""
    path = max((folder / "commits").iterdir())
    document = json.loads(path.read_bytes().split(b"\n")[0])
    change(document)
    path.write_bytes(seal(document))


def forge_part(folder: Path, data: bytes) -> None:
    """Put other bytes in the place of the newest snapshot's part, with digests that fit."""
    (folder / "parts" / content_name(data)).write_bytes(data)
    forge_commit(folder, lambda commit: commit["parts"][0].update(sha256=content_name(data), size=len(data)))


def agreed(folder: Path, restore: Callable[[Path], Commit] = restored, older: str = "whole") -> bool:
    """Whether the newest snapshot is whole, on which all agree; where it is not, the one before is restored."""
    store, newest = Store.open(str(folder)), int(max((folder / "commits").iterdir()).name)
    report = check(store)
    whole = newest in [commit.sequence for commit in report.whole]
    assert whole or not report.sound
    try:
        assert (restore(folder).sequence == newest) == whole
    except DamagedCheckpoint:
        assert not whole
        assert older == "unknown", "the snapshot before is whole"
    for commit in Checkpointer(folder).commits():
        if commit.sequence == newest:
            try:
                verify(store, commit)
            except DamagedCheckpoint:
                assert not whole
            else:
                assert whole
    return whole


VALUES = (
    st.integers(-3, 3)
    | st.sampled_from([None, True, 2**40, 2**60, 2**70, "", "/etc/passwd", "0" * 64, "0" * 32, "bool", [], {}, [[]]])
    | st.sampled_from([{"int": hex(2**900)}, {"int": hex(2**5000)}, {"float": "nan"}, {"tensor": 0}, {"tensor": 9}])
    | st.sampled_from([{"dict": []}, {"dict": [["a", 1]]}, {"sharded": [[2**50] * 70, []]}, {"tuple": [2**20]}])
)


def spots(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, child in children for place in [(*path, key), *spots(child, (*path, key))]]


def altered(document: dict[str, Any], data: st.DataObject) -> None:
    """Put another value somewhere, or let something stand twice, or not at all."""
    *path, last = data.draw(st.sampled_from([each for each in spots(document) if each != ("format",)]), label="spot")
    node: Any = document
    for key in path:
        node = node[key]
    how = data.draw(st.sampled_from(["replace", "drop", "twice"]), label="how")
    if how == "drop":
        del node[last]
    elif how == "twice" and isinstance(node, list):
        node.append(node[last])
    else:
        node[last] = data.draw(VALUES, label="value")


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_restoring_verifying_and_fsck_agree_on_any_forged_store(
    stores: dict[str, Path], kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("forged") / "store"
    shutil.copytree(stores[kind], folder)
    what = data.draw(st.sampled_from(["parts", "parts", "commits", "packs"]), label="what")
    commit = Checkpointer(folder).commits()[-1]
    if what == "commits":
        forge_commit(folder, lambda document: altered(document, data))
    elif what == "parts":
        document = json.loads((folder / commit.parts[0].name).read_bytes())
        altered(document, data)
        forge_part(folder, dump(document))
    else:
        pack = newest_objects(folder)["packs"]
        broken = bytearray(pack.read_bytes())
        broken[data.draw(st.integers(0, len(broken) - 1), label="byte")] ^= 1
        pack.write_bytes(broken)
    # torch reads tensors when the snapshot is chosen already
    agreed(folder, KINDS[kind][1], older="whole" if kind == "plain" and what != "commits" else "unknown")


def in_model(node: Any) -> Any:
    return {"dict": [["model", {"dict": [["w", node]]}]]}


F32 = StoredTensor(torch.float32, (0, 5), ())


@pytest.mark.parametrize(
    "change",
    [
        lambda part: replace(part, packs=tuple(replace(pack, checksum="0" * 32) for pack in part.packs)),
        lambda part: replace(part, shared=[part.shared]),
        lambda part: replace(part, shared=in_model({"sharded": [[99], [[[0], 0]]]})),
        lambda part: replace(part, shared=None),
        lambda part: replace(part, shared={"dict": []}),
        lambda part: replace(part, local={"tuple": []}),
        lambda part: replace(part, rank=1),
    ],
    ids=["checksum", "list", "slices", "null", "tensors that stand nowhere", "tuple", "rank"],
)
def test_what_restoring_refuses_is_not_whole(
    stores: dict[str, Path], tmp_path: Path, change: Callable[[Part], Part]
) -> None:
    folder = Path(shutil.copytree(stores["plain"], tmp_path / "store"))
    part = read_part(Store.open(str(folder)), Checkpointer(folder).commits()[-1].parts[0])
    forge_part(folder, change(part).to_bytes())
    assert not agreed(folder)


def test_an_empty_slice_with_another_number_of_axes_is_damage(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep_last=9)
    for update in (1, 2):
        commit = checkpointer.save(State({"model": {"w": torch.ones(4)}}), {"updates": update})
    part = read_part(Store.open(str(tmp_path)), commit.parts[0])
    node = in_model({"sharded": [[4], [[[0], 0], [[0, 0], 1]]]})
    forged = replace(part, tensors=(*part.tensors, F32), shared_tensors=(0, 1), shared=node)
    forge_part(tmp_path, forged.to_bytes())
    assert not agreed(tmp_path)


def test_a_part_that_is_listed_for_two_ranks_is_damage(stores: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(stores["plain"], tmp_path / "store"))
    forge_commit(
        folder,
        lambda commit: commit.update(world_size=2, parts=[commit["parts"][0], {**commit["parts"][0], "rank": 1}]),
    )
    report = check(Store.open(str(folder)))
    assert [commit.update for commit in report.whole] == [1]
    assert Checkpointer(folder).restore_resized()[2].update == 1


def test_truth_values_that_are_neither_are_damage_and_are_never_written(tmp_path: Path) -> None:
    odd = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    checkpointer = Checkpointer(tmp_path, keep_last=9)
    for update in (1, 2):
        commit = checkpointer.save(State({"a": odd.view(torch.bool), "b": odd + update}), {"updates": update})
    assert torch.equal(Checkpointer(tmp_path).restore()[0].shared["a"].view(torch.uint8), odd.ne(0).view(torch.uint8))
    part = read_part(Store.open(str(tmp_path)), commit.parts[0])
    first, second = part.tensors
    forged = replace(part, tensors=(first, replace(second, dtype=torch.bool)))
    forge_part(tmp_path, forged.to_bytes())
    assert not agreed(tmp_path)


@pytest.mark.parametrize("offsets", [(0, 1), (0, 2, 2), (0, 3)])
def test_slices_of_torchs_that_overlap_or_leave_something_out_are_damage(
    tmp_path: Path, offsets: tuple[int, ...]
) -> None:
    store = Store.open(str(tmp_path))
    writer = CommitWriter(store, "somebody")
    writer.claim()
    for update, begins in ((1, (0, 2)), (2, offsets)):
        slices = [slice_entry(("model", "w"), (begin,), (4,), torch.full((2,), 1.0 * update)) for begin in begins]
        put_slices(store, writer, update, own_tree({"model.w": slices}, {}))
    assert not agreed(tmp_path, restored_by_torch)
    weights, commit = load_sharded_weights(str(tmp_path))
    assert (commit.update, weights["w"].tolist()) == (1, [1.0] * 4)


def put_slices(store: Store, writer: CommitWriter, update: int, own: dict[str, Any]) -> None:
    ref = PartWriter(store, 0).write({}, own)
    writer.publish(Draft("interval", {"updates": update}, {}, 1, {"shared": (), "local": ("dcp",)}, (ref,)))


@pytest.mark.parametrize("path", [("a", 10**6), ("a", 2**50), (*["a"] * 64, 0), ("a", -1), *[(2**19,) * 60]])
def test_a_path_of_torchs_into_a_list_that_is_not_filled_is_damage(tmp_path: Path, path: tuple[str | int, ...]) -> None:
    store = Store.open(str(tmp_path))
    writer = CommitWriter(store, "somebody")
    writer.claim()
    for update, way in ((1, ("a", 0)), (2, path)):
        slices = [slice_entry(way, (0,), (4,), torch.full((4,), 1.0 * update))]
        put_slices(store, writer, update, own_tree({"w": slices}, {"n": value_entry("n", ("n",), 1)}))
    assert not agreed(tmp_path, restored_by_torch)


@pytest.mark.parametrize("nested", [150, 190, 250, 700, 900])
def test_what_is_nested_deeply_is_damage_however_it_is_met(
    stores: dict[str, Path], tmp_path: Path, nested: int
) -> None:
    folder = Path(shutil.copytree(stores["plain"], tmp_path / "store"))
    commit = Checkpointer(folder).commits()[-1]
    document = json.loads((folder / commit.parts[0].name).read_bytes())
    deep = "[" * nested + "]" * nested
    for spot in ("shared", "rank"):
        text = dump({**document, spot: "@"}).replace(b'"@"', b'{"float":%s}' % deep.encode())
        forge_part(folder, text)
        assert not agreed(folder)
    body = dump({"format": 1, "kind": "commit", "epoch": "@"}).replace(b'"@"', deep.encode())
    (folder / commit.name).write_bytes(b"%s\n%s\n" % (body, hashlib.sha256(body).hexdigest().encode()))
    assert not agreed(folder)
