from pathlib import Path
from unittest import mock

import pytest
import torch

from gradwire.checkpoint import DamagedCheckpoint, MissingObject, NoCheckpoint, StoreUnavailable
from gradwire.checkpoint.commit import Commit, Epoch, Seal, Writer
from gradwire.checkpoint.journal import Place
from gradwire.checkpoint.journal_reader import JournalReader, read_update
from gradwire.checkpoint.journal_trim import trim
from gradwire.checkpoint.lineage import Stretch, lineage
from gradwire.checkpoint.store import Store
from tests.checkpoint.journals import claimed, committed, gradient, put
from tests.checkpoint.test_commit import a_commit


@pytest.fixture(params=["path", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store.open({"path": "", "memory": "memory:/"}[request.param] + str(tmp_path / "store"))


@pytest.fixture
def base(store: Store) -> Commit:
    return committed(claimed(store), 10)


def updates(store: Store, base: Commit) -> list[int]:
    return JournalReader(store, base).updates()


def alter(store: Store, name: str) -> None:
    data = store.get(name, 10**6)
    store.delete(name)
    store.put_new(name, data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])


def test_without_a_journal_nothing_follows(store: Store, base: Commit) -> None:
    assert updates(store, base) == []
    with pytest.raises(NoCheckpoint, match="no journal after the snapshot of update 10"):
        JournalReader(store, base).read(11)


def test_an_update_counts_when_the_entries_of_all_ranks_are_there(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12, ranks=(0, 2), size=3)
    put(store, base, 1, 11, 13, ranks=(1,), size=3)
    assert updates(store, base) == [11]
    put(store, base, 1, 12, ranks=(1,), size=3)
    reader = JournalReader(store, base)
    assert reader.updates() == [11, 12]
    entries = reader.read(12)
    assert [entry.place.rank for entry in entries] == [0, 1, 2]
    assert torch.equal(entries[2].tensors["gradient"].data, gradient(12, 2))
    assert [entry.place for entry in read_update(store, reader.names[12])] == [entry.place for entry in entries]


def test_updates_behind_a_gap_do_not_count(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 13)
    assert updates(store, base) == [11]
    with pytest.raises(NoCheckpoint, match="it has updates 11 to 11 after the snapshot of update 10"):
        JournalReader(store, base).read(13)


def test_updates_from_a_damaged_entry_on_do_not_count(
    store: Store, base: Commit, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, base, 1, 11, 12, 13)
    alter(store, JournalReader(store, base).names[12][0])
    reader = JournalReader(store, base)
    assert reader.updates() == [11]
    assert "the journal after update 11 does not count" in caplog.text
    with pytest.raises(DamagedCheckpoint, match="altered"):
        reader.read(12)


def test_entries_that_contradict_each_other_about_the_ranks_do_not_count(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, size=1)
    put(store, base, 1, 11, ranks=(0, 1), size=2)
    assert updates(store, base) == []


def test_an_entry_that_goes_while_it_is_read_ends_what_counts(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12)
    reader = JournalReader(store, base)
    store.delete(reader.names[12][0])
    assert reader.updates() == [11]
    with pytest.raises(MissingObject):
        reader.read(12)


def test_a_store_that_does_not_answer_is_an_error_and_no_end_of_the_journal(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12)
    reader = JournalReader(store, base)
    with mock.patch.object(Store, "get", side_effect=StoreUnavailable("no answer")), pytest.raises(StoreUnavailable):
        reader.updates()
    with mock.patch.object(Store, "list", side_effect=StoreUnavailable("no answer")), pytest.raises(StoreUnavailable):
        JournalReader(store, base)


def test_what_a_zombie_adds_to_a_sealed_epoch_does_not_count(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12)
    successor = claimed(store, base, JournalReader(store, base).seal(12))
    put(store, base, 1, 13, 14)
    assert updates(store, base) == [11, 12]
    put(store, base, successor.epoch, 13)
    reader = JournalReader(store, base)
    assert reader.updates() == [11, 12, 13]
    assert [entry.place.epoch for update in (12, 13) for entry in reader.read(update)] == [1, successor.epoch]
    assert reader.seal(13) == Seal(base.sequence, successor.epoch, 13)


def test_a_writer_that_goes_back_leaves_the_updates_after_it_out(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12, 13)
    reader = JournalReader(store, base)
    back = claimed(store, base, reader.seal(11))
    assert updates(store, base) == [11]
    put(store, base, back.epoch, 12)
    assert [entry.place.epoch for entry in JournalReader(store, base).read(12)] == [back.epoch]
    anew = claimed(store, base, reader.seal(10))
    assert updates(store, base) == []
    put(store, base, anew.epoch, 11, ranks=(0, 1), size=2)
    assert updates(store, base) == [11]


def test_a_successor_whose_first_update_is_missing_adds_nothing(store: Store, base: Commit) -> None:
    put(store, base, 1, 11)
    successor = claimed(store, base, JournalReader(store, base).seal(11))
    put(store, base, successor.epoch, 13)
    put(store, base, 1, 12)
    assert updates(store, base) == [11]


def test_damage_before_a_successor_ends_what_counts(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12)
    reader = JournalReader(store, base)
    successor = claimed(store, base, reader.seal(12))
    put(store, base, successor.epoch, 13)
    store.delete(reader.names[12][0])
    assert updates(store, base) == [11]


def test_a_commit_of_a_later_epoch_is_followed_by_that_epoch(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12)
    successor = claimed(store, base, JournalReader(store, base).seal(12))
    put(store, base, successor.epoch, 13, 14)
    newer = committed(successor, 13)
    put(store, newer, successor.epoch, 15)
    assert updates(store, newer) == [14, 15]
    assert updates(store, base) == [11, 12, 13, 14, 15]


def test_a_run_that_started_anew_in_the_store_hides_nothing_of_a_commit_before_it(store: Store, base: Commit) -> None:
    put(store, base, 1, 11, 12)
    claimed(store)
    assert updates(store, base) == [11, 12]


@pytest.mark.parametrize("harm", ["delete", "alter"])
def test_after_a_claim_that_cannot_be_read_nothing_counts_because_nobody_knows_what_does(
    store: Store, base: Commit, harm: str
) -> None:
    put(store, base, 1, 11)
    successor = claimed(store, base, JournalReader(store, base).seal(11))
    put(store, base, successor.epoch, 12)
    claimed(store)  # a run that starts anew; and no next claim takes the number of the one that is lost
    claim = f"commits/{successor.epoch:020d}"
    alter(store, claim) if harm == "alter" else store.delete(claim)
    reader = JournalReader(store, base)
    assert reader.updates() == []
    assert f"the claim of epoch {successor.epoch} cannot be read" in str(reader.problem)
    back = claimed(store, base, reader.seal(10))
    put(store, base, back.epoch, 11, 12)
    reader = JournalReader(store, base)
    assert (reader.updates(), reader.problem) == ([11, 12], None), "the newest claim leads back without the damaged one"
    onwards = claimed(store, base, Seal(base.sequence, successor.epoch, 12))
    put(store, base, onwards.epoch, 13)
    assert JournalReader(store, base).problem is not None, "the newest claim leads back over the damaged one"


def test_what_was_journalled_while_a_base_was_saved_stays_with_it(store: Store) -> None:
    writer = claimed(store)
    first = committed(writer, 10)
    put(store, first, 1, 11, 12, 13)
    second = committed(writer, 12)
    put(store, second, 1, 14)
    third = committed(writer, 14)
    put(store, third, 1, 15)
    verified: list[Commit] = []
    assert trim(store, [first, second, third], verified.append) == 0
    assert trim(store, [second, third], verified.append) == 2
    assert verified == [third]
    assert updates(store, second) == [13, 14, 15]
    assert updates(store, first) == []
    fourth = committed(writer, 15)
    assert trim(store, [third, fourth], verified.append) == 2
    assert store.folders("journal") == [f"journal/{third.sequence:020d}"]
    assert updates(store, third) == [15]


def test_trimming_leaves_what_the_run_is_writing_at_this_moment(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer = claimed(store)
    first = committed(writer, 10)
    put(store, first, writer.epoch, 11)
    second = committed(writer, 11)
    folder = tmp_path / "journal" / f"{first.sequence:020d}" / f"{writer.epoch:020d}"
    unfinished = folder / ".tmp-12"
    unfinished.touch()
    assert trim(store, [second], lambda commit: None) == 1
    assert unfinished.exists()
    unfinished.unlink()
    assert trim(store, [second], lambda commit: None) == 0
    assert not folder.parent.exists()


def test_nothing_is_trimmed_before_the_newest_base_is_verified_or_after_a_takeover(store: Store) -> None:
    writer = claimed(store)
    first = committed(writer, 10)
    put(store, first, 1, 11)
    second = committed(writer, 11)

    def damaged(commit: Commit) -> None:
        raise DamagedCheckpoint(f"{commit.name} is not whole")

    with pytest.raises(DamagedCheckpoint, match="not whole"):
        trim(store, [second], damaged)
    claimed(store, second)
    assert trim(store, [second], lambda commit: None) == 0
    assert updates(store, first) == [11]


WRITER = Writer("host:17", "0123")


def epoch(sequence: int, seals: Seal | None = None) -> Epoch:
    return Epoch(sequence, WRITER, "2031-01-01T00:00:00.000+00:00", seals)


def test_the_lineage_of_a_commit_ends_each_epoch_where_the_next_went_on() -> None:
    base = a_commit()  # number 7, epoch 5, update 40
    claims = [epoch(5), epoch(8, Seal(7, 5, 44)), epoch(9, Seal(7, 8, 60)), epoch(10)]
    assert lineage(claims[:1], base) == (Stretch(5, 41, None),)
    assert lineage(claims, base) == (Stretch(5, 41, 44), Stretch(8, 45, 60), Stretch(9, 61, None))
    assert lineage([*claims, epoch(11, Seal(7, 8, 50))], base) == (
        Stretch(5, 41, 44),
        Stretch(8, 45, 50),
        Stretch(11, 51, None),
    )
    assert lineage([*claims, epoch(11, Seal(6, 5, 30))], base) == lineage(claims, base), "it left before the commit"


def test_places_have_one_name_each() -> None:
    for name in ("journal/1/2", f"journal/{1:020d}/{2:020d}/{3:020d}-0", f"commits/{1:020d}"):
        with pytest.raises(DamagedCheckpoint, match="not the name of an entry"):
            Place.of(name)
