"""Storages: a journal that survives kills, databases, and what is said where one cannot be used."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import gradwire.trainer.sweep.storage as storage
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.errors import StorageError
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.objectives import Objective
from gradwire.trainer.sweep.samplers import Random
from gradwire.trainer.sweep.space import read
from gradwire.trainer.sweep.storage import JOURNAL, settled, shown


def ledger(folder: Path, url: str | None = None) -> Ledger:
    space, _ = read(["x=interval(0, 1)", "k=a,2"], {}, Sources())
    return Ledger.open(folder, url, "study", space, [Objective(metric="eval/loss")], [])


@pytest.mark.parametrize("database", [False, True])
def test_what_is_written_is_there_when_it_is_opened_again(tmp_path: Path, database: bool) -> None:
    url = f"sqlite:///{tmp_path}/results.db" if database else None
    book = ledger(tmp_path, url)
    values = book.fill(book.create(), Random(), 0)
    book.report(0, 1, 0.5)
    (trial,) = ledger(tmp_path, url).trials()
    assert trial.params == values and trial.intermediate_values == {1: 0.5}


def test_a_torn_last_line_is_taken_away(tmp_path: Path) -> None:
    ledger(tmp_path).create()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    assert ledger(tmp_path).create() == 1
    assert [trial.number for trial in ledger(tmp_path).trials()] == [0, 1]


def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    ledger(tmp_path)
    code = f"""
import fcntl, os, sys, time
fcntl.flock(os.open({str(tmp_path / f".{JOURNAL}.lock")!r}, os.O_RDWR), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    waiter = subprocess.Popen([sys.executable, "-c", f"""
from pathlib import Path
from tests.trainer.sweep.test_storage import ledger
ledger(Path({str(tmp_path)!r})).create()
"""])  # fmt: skip
    time.sleep(0.1)
    holder.kill()
    assert waiter.wait(timeout=300) == 0
    assert len(ledger(tmp_path).trials()) == 1


def test_a_lock_that_nobody_lets_go_of_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PATIENCE", 0.05)
    book = ledger(tmp_path)
    files.lock(tmp_path / f".{JOURNAL}.lock", lambda: False)
    with pytest.raises(StorageError, match="has been locked by another process"):
        book.create()


def test_looking_at_a_journal_writes_nothing(tmp_path: Path) -> None:
    ledger(tmp_path).create()
    before = (tmp_path / JOURNAL).read_bytes()
    assert len(ledger(tmp_path).trials()) == 1 and (tmp_path / JOURNAL).read_bytes() == before


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_a_database_that_goes_with_its_process_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match="is gone with its process"):
        storage.check(url)


def test_a_relative_file_is_the_same_from_everywhere_and_passwords_are_not_shown(tmp_path: Path) -> None:
    assert settled("sqlite:///here/study.db") == f"sqlite:///{Path.cwd()}/here/study.db"
    for url in (None, "sqlite:////there/study.db", "postgresql://me@db/study"):
        assert settled(url) == url
    assert shown(tmp_path, "postgresql://me:secret@db:5432/study") == "postgresql://me:…@db:5432/study"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "is no database's URL"),
        ("oracle9://here/study", "is no database's URL"),
        ("redis://here", "RedisStorage is removed"),
        ("sqlite:////nowhere/at/all/study.db", "cannot be used: unable to open database file"),
    ],
)
def test_a_storage_that_cannot_be_used_is_named(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(StorageError) as raised:
        ledger(tmp_path, url)
    assert message in str(raised.value).replace("(sqlite3.OperationalError) ", "") and url in str(raised.value)
