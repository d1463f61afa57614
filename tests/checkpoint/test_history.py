from pathlib import Path

from gradwire.checkpoint import Checkpointer
from gradwire.checkpoint.history import read_log
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from tests.checkpoint.places import corrupt, place, s3_endpoint, save  # noqa: F401
from tests.checkpoint.states import state_at


def test_every_snapshot_is_told_with_its_branch_tags_size_and_writer(place: str) -> None:  # noqa: F811
    first = save(place, range(1, 4), {1: 2.5})
    again = Checkpointer(place, keep_last=99, writer="second")
    again.restore(2)
    again.save(state_at(2), {"updates": 4}, reason="end")
    Tags(Store.open(place)).create("gold", first.at(1))
    log = read_log(Store.open(place))
    assert [entry.commit.update for entry in log.entries] == [1, 2, 3, 4]
    assert [entry.branch for entry in log.entries] == ["present", "present", "abandoned", "present"]
    assert [entry.tags for entry in log.entries] == [("gold",), (), (), ()]
    assert log.entries[3].commit.writer.identity == "second"
    assert log.updates == [1, 2, 4]
    assert log.entries[0].size == sum(t.stored.nbytes for t in read_outline(Store.open(place), first.at(1)).tensors)
    assert all(entry.problem is None and entry.stored for entry in log.entries)
    assert [bool(entry.added) for entry in log.entries] == [True, True, True, True], "who goes back relies on nothing"


def test_damage_that_shows_without_reading_packs_is_told(tmp_path: Path) -> None:
    checkpointer, store = save(str(tmp_path), range(1, 5)), Store.open(str(tmp_path))
    commits = checkpointer.commits()
    corrupt(str(tmp_path), commits[0].name)
    corrupt(str(tmp_path), commits[1].parts[0].name)
    store.delete(read_outline(store, commits[2]).parts[0].packs[0].name)
    log = read_log(store)
    assert list(log.damaged) == [commits[0].sequence]
    assert [entry.commit.update for entry in log.entries] == [2, 3, 4]
    assert log.entries[0].size is None
    assert "is longer" in str(log.entries[0].problem) or "altered" in str(log.entries[0].problem)
    assert "is missing" in str(log.entries[1].problem)
    assert log.updates == [4]


def test_an_empty_store_has_an_empty_log(tmp_path: Path) -> None:
    assert read_log(Store.open(str(tmp_path))).entries == ()
