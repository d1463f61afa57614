"""Stores that are damaged, foreign, or not ours to use: an error of the right class that says what to do."""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkpoint_faults.bucket import Bucket, Client, over
from benchmarks.checkpoint_faults.contenders import FOLDER
from benchmarks.checkpoint_faults.disk import Contents, Disk
from benchmarks.checkpoint_faults.gradwire_sessions import on_disk
from gradwire.checkpoint import (
    Checkpointer,
    CheckpointWriteError,
    DamagedCheckpoint,
    MissingObject,
    StoreError,
    UnsupportedFormat,
)
from gradwire.checkpoint.store import Store
from tests.checkpoint.places import newest_objects
from tests.checkpoint.states import same_state, state_at


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the updates 1 and 2."""
    folder = tmp_path / "store"
    with_two = Checkpointer(str(folder))
    for update in (1, 2):
        with_two.save(state_at(update), {"updates": update})
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("kind", "harm", "error", "message"),
    [
        ("packs", Path.unlink, MissingObject, r"packs/[0-9a-f]{64} is missing"),
        ("packs", cut, DamagedCheckpoint, r"packs/[0-9a-f]{64} has \d+ of its \d+ bytes"),
        ("parts", Path.unlink, MissingObject, r"parts/[0-9a-f]{64} is missing"),
        ("parts", cut, DamagedCheckpoint, r"parts/[0-9a-f]{64} is altered"),
        ("commits", cut, DamagedCheckpoint, r"commits/\d{20} is cut short or altered"),
    ],
    ids=["pack missing", "pack cut", "part missing", "part cut", "commit cut"],
)
def test_damage_is_named_and_the_snapshot_before_is_restored(
    store: Path, kind: str, harm: Callable[[Path], None], error: type[DamagedCheckpoint], message: str
) -> None:
    harm(newest_objects(store)[kind])
    with pytest.raises(DamagedCheckpoint, match=message) as raised:
        Checkpointer(str(store)).restore(2)
    assert kind == "commits" or "Restore another update; `gradwire checkpoint fsck" in str(raised.value)
    checkpointer = Checkpointer(str(store))
    state, commit = checkpointer.restore()
    assert commit.update == 1
    assert same_state(state, state_at(1))
    assert len(checkpointer.damaged) == 1
    checkpointer.save(state_at(3), {"updates": 3})
    assert same_state(Checkpointer(str(store)).restore()[0], state_at(3))


def test_a_store_without_a_whole_snapshot_is_damaged_and_not_empty(store: Path) -> None:
    for path in (store / "packs").iterdir():
        path.unlink()
    with pytest.raises(DamagedCheckpoint, match=r"no whole snapshot.*gradwire checkpoint fsck"):
        Checkpointer(str(store)).restore()


def test_a_future_format_asks_for_a_newer_version(store: Path) -> None:
    path = newest_objects(store)["commits"]
    document = json.loads(path.read_bytes().split(b"\n")[0])
    document["format"] = 999
    line = json.dumps(document).encode()
    path.write_bytes(b"%s\n%s\n" % (line, hashlib.sha256(line).hexdigest().encode()))
    with pytest.raises(UnsupportedFormat, match=r"format 999 .*reads format \d.*install a newer gradwire"):
        Checkpointer(str(store)).restore()
    with pytest.raises(CheckpointWriteError, match="install a newer gradwire"):
        Checkpointer(str(store)).save(state_at(3), {"updates": 3})


def test_foreign_files_are_neither_read_nor_removed(store: Path) -> None:
    foreign = [
        store / "README",
        store / "commits" / "notes.txt",
        store / "packs" / "x.pt",
        store / "parts" / ("0" * 63),
    ]
    for path in foreign:
        path.write_text("foreign")
    (store / "commits" / f"{99:020d}.bak").mkdir()
    checkpointer = Checkpointer(str(store), keep_last=1)
    assert checkpointer.restore()[1].update == 2
    for update in (3, 4, 5):
        checkpointer.save(state_at(update), {"updates": update})
    assert all(path.read_text() == "foreign" for path in foreign)
    assert (store / "commits" / f"{99:020d}.bak").is_dir()


@pytest.mark.parametrize("url", ["memory://runs/../secret", "memory://../secret"])
def test_a_remote_path_with_dots_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"'\.\.'.*write it out"):
        Checkpointer(url)


def test_a_part_that_names_a_file_outside_the_store_is_damaged(store: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for name in ("../secret", "packs/../../secret", str(tmp_path / "secret")):
        with pytest.raises(DamagedCheckpoint, match="not the name of an object"):
            Store.open(str(store)).get(name, 100)


def test_a_folder_that_is_read_only_can_be_restored_from_and_says_so_when_saved_to() -> None:
    contents = Contents.with_folder(str(FOLDER))
    on_disk(Disk(contents)).save(1)

    def hook(_: int, operation: Any) -> None:
        if operation.kind not in ("read", "names", "size", "modified"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    session = on_disk(Disk(contents, hook))
    assert session.restore() == 1
    with pytest.raises(CheckpointWriteError, match=r"Read-only file system.*you may read, write, list, link"):
        session.save(2)
    assert on_disk(Disk(contents)).restore() == 1


def refusing(*kinds: str) -> Callable[[int, Any], None]:
    def hook(_: int, request: Any) -> None:
        if request.kind in kinds:
            raise PermissionError("Access Denied")

    return hook


def test_a_bucket_that_is_read_only_can_be_restored_from_and_says_so_when_saved_to() -> None:
    bucket = Bucket()
    over(Client(bucket)).save(1)
    session = over(Client(bucket, refusing("put", "delete")))
    assert session.restore() == 1
    with pytest.raises(CheckpointWriteError, match=r"cannot write commits/.*Access Denied.*the credentials"):
        session.save(2)
    assert over(Client(bucket)).restore() == 1


def test_wrong_credentials_are_an_error_and_not_an_empty_store() -> None:
    bucket = Bucket()
    over(Client(bucket)).save(1)
    session = over(Client(bucket, refusing("put", "get", "info", "list", "delete")))
    with pytest.raises(StoreError, match=r"cannot list commits.*Access Denied.*the credentials"):
        session.restore()
    with pytest.raises(CheckpointWriteError, match=r"Access Denied.*the credentials"):
        session.save(2)


def test_a_bucket_that_may_be_written_and_not_deleted_from_saves_on() -> None:
    bucket = Bucket()
    session = over(Client(bucket, refusing("delete")))
    for update in (1, 2, 3, 4):
        session.save(update)
    assert over(Client(bucket)).restore() == 4
    assert session.verify() == []
