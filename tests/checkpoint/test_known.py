"""What is in the store already is not written again."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.packs import SALT
from gradwire.checkpoint.snapshot import Part, PartWriter, read_part
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tensors import CHUNK_BYTES
from tests.checkpoint.states import same, same_state

MEGABYTE = 2**18  # float32 elements


def normal(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def fine_tuned(update: int) -> State:
    """Frozen weights, and a few that are trained."""
    return State({"model": {"frozen": normal(5 * MEGABYTE, 0), "adapter": normal(1000, update)}})


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (folder / "packs").iterdir()}


def save(store: Store, known: Known, tensors: dict[str, Tensor], update: int) -> tuple[Part, PartWriter]:
    writer = PartWriter(store, 0, known)
    part = read_part(store, writer.write(tensors, {"update": update}))
    writer.committed()
    return part, writer


def test_frozen_weights_are_written_once(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep_last=9)
    checkpointer.save(fine_tuned(1), {"updates": 1})
    first = sizes(tmp_path)
    for update in range(2, 5):
        checkpointer.save(fine_tuned(update), {"updates": update})
    later = [size for name, size in sizes(tmp_path).items() if name not in first]
    assert len(later) == 3
    assert max(later) <= SALT + 4000
    for update in range(1, 5):
        assert same_state(checkpointer.restore(update)[0], fine_tuned(update))


def test_old_packs_stay_as_long_as_a_snapshot_needs_them(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep_last=1, keep_best=0)
    for update in range(1, 4):
        checkpointer.save(fine_tuned(update), {"updates": update})
    assert len(sizes(tmp_path)) == 2
    assert same_state(Checkpointer(tmp_path).restore()[0], fine_tuned(3))


def test_after_a_restore_what_was_restored_is_known(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(fine_tuned(1), {"updates": 1})
    first = sizes(tmp_path)
    again = Checkpointer(tmp_path)
    again.restore()
    again.save(fine_tuned(2), {"updates": 2})
    assert sum(sizes(tmp_path).values()) - sum(first.values()) <= SALT + 4000
    assert same_state(Checkpointer(tmp_path).restore()[0], fine_tuned(2))


def test_a_failed_snapshot_is_not_known_and_takes_nothing_along(tmp_path: Path) -> None:
    store, known = Store.open(str(tmp_path)), Known()
    whole = {"a": normal(MEGABYTE, 1)}
    save(store, known, whole, 1)
    failed = PartWriter(store, 0, known)
    failed.write(whole | {"b": normal(MEGABYTE, 2)}, {})
    assert failed.written > 0
    failed.discard()
    part, writer = save(store, known, whole | {"b": normal(MEGABYTE, 2)}, 2)
    assert writer.written > 0
    assert len(sizes(tmp_path)) == 2 == len(part.packs)


def test_a_pack_of_which_little_is_used_dies_out(tmp_path: Path) -> None:
    store, known = Store.open(str(tmp_path)), Known()
    tensors = {str(index): normal(MEGABYTE, index) for index in range(10)}
    old = save(store, known, tensors, 0)[0].packs[0]
    for update in range(1, 5):
        tensors |= {str(2 * update - index): normal(MEGABYTE, 100 * update + index) for index in range(2)}
        assert old in save(store, known, tensors, update)[0].packs, "a tenth of it is used by the last of these"
    assert old not in save(store, known, tensors, 5)[0].packs
    stored = read_back(store, save(store, known, tensors, 6)[0])
    assert same(stored, tensors)


def read_back(store: Store, part: Part) -> object:
    from gradwire.checkpoint.loading import load_tree
    from gradwire.checkpoint.snapshot import shared_places

    return load_tree(store, shared_places([part], "part"), part.shared, "part")


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_a_pack_that_is_gone_or_cut_short_is_written_again(harm: str, tmp_path: Path) -> None:
    store, known = Store.open(str(tmp_path)), Known()
    tensors = {"a": normal(MEGABYTE, 1)}
    pack = tmp_path / save(store, known, tensors, 1)[0].packs[0].name
    if harm == "missing":
        pack.unlink()
    else:
        pack.write_bytes(pack.read_bytes()[:-1])
    part, _ = save(store, known, tensors, 2)
    assert pack.name != part.packs[0].digest
    assert store.size(part.packs[0].name) == part.packs[0].size
    assert same(read_back(store, part), tensors)


def test_only_the_chunks_that_changed_are_written(tmp_path: Path) -> None:
    store, known = Store.open(str(tmp_path)), Known()
    embedding = normal(8 * MEGABYTE, 1)
    before = save(store, known, {"e": embedding}, 1)[0]
    embedding[3 * MEGABYTE + 5] += 1
    after, writer = save(store, known, {"e": embedding}, 2)
    changed = [
        old.digest != new.digest for old, new in zip(*(p.tensors[0].chunks for p in (before, after)), strict=True)
    ]
    assert changed == [index == 3 for index in range(8)]
    assert writer.written <= SALT + CHUNK_BYTES


def test_equal_bytes_of_elements_of_another_size_are_kept_apart(tmp_path: Path) -> None:
    store, known = Store.open(str(tmp_path)), Known()
    floats = normal(MEGABYTE, 1)
    tensors = {"f": floats, "h": floats.view(torch.int16), "b": floats.view(torch.uint8)}
    for update in (1, 2):
        assert same(read_back(store, save(store, known, tensors, update)[0]), tensors)
