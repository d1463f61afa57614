import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from gradwire.checkpoint import CheckpointWriteError, StoreFull, UnsupportedState, WriterFenced
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.journal_writer import JournalWriter
from gradwire.checkpoint.store import Store
from tests.checkpoint.journals import an_entry, claimed, committed, gradient, put

LONG = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path))


@pytest.fixture
def base(store: Store) -> Commit:
    return committed(claimed(store), 10)


def blobs(update: int) -> dict[str, Blob]:
    return {"gradient": Blob(gradient(update))}


def append(journal: JournalWriter, *updates: int) -> None:
    for update in updates:
        journal.append(update, {"lr": 0.1 * update}, blobs(update))


class Slow:
    """Puts of a store that wait until they may go on; counts what was put together."""

    def __init__(self) -> None:
        self.allowed = threading.Event()
        self.begun = threading.Event()
        self.groups: list[list[str]] = []

    @contextmanager
    def installed(self) -> Iterator["Slow"]:
        put_all = Store.put_all

        def slow(store: Store, pairs: Sequence[tuple[str, bytes]]) -> list[str]:
            self.groups.append([name for name, _ in pairs])
            self.begun.set()
            assert self.allowed.wait(240)
            return put_all(store, pairs)

        with mock.patch.object(Store, "put_all", slow):
            yield self


def test_what_was_waited_for_is_read_back(store: Store, base: Commit) -> None:
    with JournalWriter(store, base, 1, 0, 1, "update") as journal:
        append(journal, 11, 12)
        journal.wait(12)
        assert (journal.last, journal.durable) == (12, 12)
        reader = JournalReader(store, base)
        assert reader.updates() == [11, 12]
        (entry,) = reader.read(12)
        assert torch.equal(entry.tensors["gradient"].data, gradient(12))
        assert entry.scalars == {"lr": 0.1 * 12}


def test_the_caller_may_change_its_tensors_after_it_appended_them(store: Store, base: Commit) -> None:
    data = gradient(1).view(10, 10).t()
    slow = Slow()
    with slow.installed(), JournalWriter(store, base, 1, 0, 1, "update") as journal:
        for update in range(11, 15):
            data.fill_(update)
            journal.append(update, {}, {"a": Blob(data), "b": Blob(data[0, 0], coding="raw"), "c": Blob(data[:0])})
        data.zero_()
        slow.allowed.set()
    reader = JournalReader(store, base)
    for update in range(11, 15):
        (entry,) = reader.read(update)
        assert torch.equal(entry.tensors["a"].data, torch.full((10, 10), float(update)))
        assert entry.tensors["b"].data.item() == update
        assert entry.tensors["c"].data.shape == (0, 10)


def test_all_that_waits_is_made_durable_together(store: Store, base: Commit) -> None:
    slow = Slow()
    with slow.installed(), JournalWriter(store, base, 1, 0, 1, "update") as journal:
        append(journal, 11)
        assert slow.begun.wait(240)
        append(journal, 12, 13, 14)
        assert journal.durable == 10
        slow.allowed.set()
        journal.wait(14)
    assert [len(group) for group in slow.groups] == [1, 3]


def test_one_group_costs_one_fsync_of_the_folder(tmp_path: Path, store: Store, base: Commit) -> None:
    names = [an_entry_name(base, update) for update in (11, 12, 13)]
    store.put_all([(names[0], b"x")])
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    with mock.patch.object(os, "fsync", noted):
        store.put_all([(name, b"x") for name in names[1:]])
    folder = str((tmp_path / names[0]).parent)
    assert synced.count(folder) == 1
    assert sum(".tmp-" in name for name in synced) == 2


def an_entry_name(base: Commit, update: int) -> str:
    return f"journal/{base.sequence:020d}/{1:020d}/{update:020d}-0-of-1"


def test_with_an_interval_nothing_is_written_before_it_unless_someone_waits(store: Store, base: Commit) -> None:
    slow = Slow()
    slow.allowed.set()
    with slow.installed(), JournalWriter(store, base, 1, 0, 1, "interval", LONG) as journal:
        append(journal, 11, 12)
        assert slow.groups == []
        journal.wait(11)
        assert [len(group) for group in slow.groups] in ([2], [1])
        append(journal, 13)
    assert JournalReader(store, base).updates() == [11, 12, 13]
    assert len(slow.groups) <= 3


def test_an_interval_that_is_over_is_written_without_a_wait(store: Store, base: Commit) -> None:
    slow = Slow()
    slow.allowed.set()
    with slow.installed(), JournalWriter(store, base, 1, 0, 1, "interval", 0.01) as journal:
        append(journal, 11)
        assert slow.begun.wait(240)


def test_append_waits_while_too_much_is_unwritten(store: Store, base: Commit) -> None:
    slow = Slow()
    with slow.installed(), JournalWriter(store, base, 1, 0, 1, "interval", LONG, most_bytes=1000) as journal:
        append(journal, 11, 12)
        blocked = threading.Thread(target=append, args=(journal, 13))
        blocked.start()
        assert slow.begun.wait(240), "what blocks an append is written before its interval is over"
        blocked.join(0.05)
        assert blocked.is_alive()
        slow.allowed.set()
        blocked.join(240)
        assert not blocked.is_alive()
    assert JournalReader(store, base).updates() == [11, 12, 13]


def test_an_entry_larger_than_all_that_may_wait_goes_alone(store: Store, base: Commit) -> None:
    with JournalWriter(store, base, 1, 0, 1, "interval", LONG, most_bytes=10) as journal:
        append(journal, 11, 12, 13)
    assert JournalReader(store, base).updates() == [11, 12, 13]


def test_a_failure_is_raised_by_the_next_wait_and_append_and_what_is_durable_counts(store: Store, base: Commit) -> None:
    journal = JournalWriter(store, base, 1, 0, 1, "update")
    append(journal, 11)
    journal.wait(11)
    with mock.patch.object(os, "link", side_effect=OSError(28, "No space left on device")):
        append(journal, 12)
        with pytest.raises(StoreFull, match="No space left"):
            journal.wait(12)
    journal.wait(11)
    with pytest.raises(StoreFull):
        append(journal, 13)
    with pytest.raises(StoreFull):
        journal.close()
    assert JournalReader(store, base).updates() == [11]


def test_a_failure_frees_an_append_that_waits(store: Store, base: Commit) -> None:
    journal = JournalWriter(store, base, 1, 0, 1, "update", most_bytes=500)
    failing = threading.Event()

    def fail(*_: Any) -> list[str]:
        failing.set()
        raise StoreFull("full")

    with mock.patch.object(Store, "put_all", fail):
        append(journal, 11)
        assert failing.wait(240)
        with pytest.raises(StoreFull):
            append(journal, 12, 13, 14)


def test_an_error_that_nobody_expected_ends_the_journal_too(store: Store, base: Commit) -> None:
    journal = JournalWriter(store, base, 1, 0, 1, "update")
    with mock.patch.object(Store, "put_all", side_effect=ZeroDivisionError("odd")):
        append(journal, 11)
        with pytest.raises(CheckpointWriteError, match="odd"):
            journal.wait(11)


def test_an_entry_that_another_process_wrote_ends_the_journal(store: Store, base: Commit) -> None:
    put(store, base, 1, 11)
    journal = JournalWriter(store, base, 1, 0, 1, "update")
    journal.append(11, {"other": 1}, {})
    with pytest.raises(WriterFenced, match="two runs journal under epoch 1"):
        journal.wait(11)


def test_an_entry_whose_success_was_not_heard_of_is_found_to_be_ours(store: Store, base: Commit) -> None:
    put(store, base, 1, 11)
    same = an_entry(JournalReader(store, base).read(11)[0].place)
    with JournalWriter(store, base, 1, 0, 1, "update") as journal:
        journal.append(11, same.scalars, same.tensors)
        journal.wait(11)


def test_updates_follow_each_other(store: Store, base: Commit) -> None:
    with JournalWriter(store, base, 1, 0, 1) as journal:
        with pytest.raises(ValueError, match="update 12 cannot follow update 10"):
            append(journal, 12)
        with pytest.raises(ValueError, match="not in the journal yet"):
            journal.wait(11)
    with JournalWriter(store, base, 1, 0, 1, after=20) as journal:
        append(journal, 21)
    with pytest.raises(ValueError, match="closed"):
        append(journal, 22)


def test_what_cannot_be_journalled_is_refused_at_once_and_the_journal_goes_on(store: Store, base: Commit) -> None:
    with JournalWriter(store, base, 1, 0, 1) as journal:
        with pytest.raises(UnsupportedState):
            journal.append(11, {"x": None}, {})  # type: ignore[dict-item]
        append(journal, 11)
    assert JournalReader(store, base).updates() == [11]


def test_an_abandoned_journal_keeps_what_is_durable_only(store: Store, base: Commit) -> None:
    journal = JournalWriter(store, base, 1, 0, 1, "interval", LONG)
    append(journal, 11)
    journal.wait(11)
    append(journal, 12)
    journal.abandon()
    assert JournalReader(store, base).updates() == [11]


def test_an_entry_that_is_being_encoded_when_the_journal_is_abandoned_is_not_written(
    store: Store, base: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, begun, go = JournalWriter(store, base, 1, 0, 1, "update"), threading.Event(), threading.Event()
    encode = JournalWriter._encode

    def slowly(self: JournalWriter, waiting: Any) -> None:
        begun.set()
        assert go.wait(240)
        encode(self, waiting)

    monkeypatch.setattr(JournalWriter, "_encode", slowly)
    append(journal, 11)
    assert begun.wait(240)
    abandoning = threading.Thread(target=journal.abandon)
    abandoning.start()
    while not journal._closing:
        time.sleep(0.001)
    go.set()
    abandoning.join(240)
    assert JournalReader(store, base).updates() == []


def test_entries_follow_into_the_folder_of_a_newer_base(store: Store) -> None:
    writer = claimed(store)
    base = committed(writer, 10)
    with JournalWriter(store, base, writer.epoch, 0, 1) as journal:
        append(journal, 11, 12, 13)
        newer = committed(writer, 11)
        journal.rebase(newer)
        append(journal, 14)
    assert [len(store.list(f"journal/{number:020d}/{1:020d}")) for number in (base.sequence, newer.sequence)] == [3, 1]
    assert JournalReader(store, newer).updates() == [12, 13, 14]
    assert JournalReader(store, base).updates() == [11, 12, 13, 14]


@pytest.mark.parametrize("arguments", [{"durability": "often"}, {"interval": 0.0}, {"rank": 2}, {"most_bytes": 0}])
def test_arguments_that_make_no_sense_are_refused(store: Store, base: Commit, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"durability must be|no journal of rank"):
        JournalWriter(store, base, 1, **{"rank": 0, "world_size": 2, **arguments})


JOURNALLING = """
import sys
from gradwire.checkpoint.journal_writer import JournalWriter
from gradwire.checkpoint.store import Store
from tests.checkpoint.journals import claimed, committed, gradient
from gradwire.checkpoint.blobs import Blob

store = Store.open(sys.argv[1])
writer = claimed(store)
journal = JournalWriter(store, committed(writer, 0), writer.epoch, 0, 1, "update")
for update in range(1, 10_000):
    journal.append(update, {}, {"gradient": Blob(gradient(update))})
    journal.wait(update)
    print(update, flush=True)
"""


def test_a_killed_process_leaves_every_update_that_it_waited_for(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", JOURNALLING, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    while (line := process.stdout.readline()) and int(line) < 20:
        pass
    process.send_signal(signal.SIGKILL)
    acknowledged = int(([line, *process.stdout.read().split()])[-1])
    process.wait()
    store = Store.open(str(tmp_path))
    (base,) = CommitLog(store).history().commits
    counted = JournalReader(store, base).updates()
    assert counted in (list(range(1, acknowledged + 1)), list(range(1, acknowledged + 2)))
    assert torch.equal(
        JournalReader(store, base).read(acknowledged)[0].tensors["gradient"].data, gradient(acknowledged)
    )
