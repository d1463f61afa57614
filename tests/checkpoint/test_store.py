import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gradwire.checkpoint import DamagedCheckpoint, MissingObject, StoreError, StoreFull, StoreUnavailable
from gradwire.checkpoint.files import RealFiles
from gradwire.checkpoint.local import LocalObjects
from gradwire.checkpoint.remote import RemoteObjects
from gradwire.checkpoint.retry import Retry
from gradwire.checkpoint.store import Store, content_name

NAME = f"commits/{1:020d}"


@pytest.fixture(params=["path", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store.open({"path": "", "file": "file://", "memory": "memory:/"}[request.param] + str(tmp_path / "store"))


def test_an_object_is_created_once_and_read_back(store: Store) -> None:
    assert store.list("commits") == []
    assert store.put_new(NAME, b"first")
    assert not store.put_new(NAME, b"second")
    assert store.put_new(NAME, b"first"), "a repeated request finds its own success"
    assert store.get(NAME, 100) == b"first"
    assert store.list("commits") == [NAME]
    store.check_create(NAME, b"first")
    store.delete(NAME)
    store.delete(NAME)
    assert store.list("commits") == []
    with pytest.raises(MissingObject, match=NAME):
        store.get(NAME, 100)


def test_content_is_stored_once_and_a_damaged_object_of_its_name_is_replaced(store: Store) -> None:
    digest = content_name(b"content")
    assert store.put_content("packs", b"content", digest)
    assert not store.put_content("packs", b"content", digest)
    store.delete(f"packs/{digest}")
    assert store.put_new(f"packs/{digest}", b"rotten")
    assert not store.put_content("packs", b"content", digest)
    assert store.get(f"packs/{digest}", 100) == b"content"


ENTRIES = [f"journal/{7:020d}/{5:020d}/{update:020d}-{rank}-of-12" for update in (1, 2) for rank in (0, 11)]


def test_several_objects_are_created_at_once_and_taken_names_are_told(store: Store) -> None:
    assert store.put_all([]) == []
    assert store.put_new(ENTRIES[1], b"one")
    assert store.put_new(ENTRIES[2], b"other")
    pairs = list(zip(ENTRIES, (b"nil", b"one", b"two", b"three"), strict=True))
    assert store.put_all(pairs) == [ENTRIES[2]]
    assert [store.get(name, 9) for name in ENTRIES] == [b"nil", b"one", b"other", b"three"]
    assert store.folders("journal") == [f"journal/{7:020d}"]
    assert store.folders(f"journal/{7:020d}") == [f"journal/{7:020d}/{5:020d}"]
    assert store.list(f"journal/{7:020d}/{5:020d}") == ENTRIES


def test_a_folder_that_a_clean_up_removes_under_a_writers_hands_is_made_again(tmp_path: Path) -> None:
    name, removals = f"journal/{1:020d}/{1:020d}/{1:020d}-0-of-1", [1, 2]

    class Removing(RealFiles):
        def create(self, path: Path) -> int:
            if removals:
                removals.pop()
                path.parent.rmdir()
            return super().create(path)

    LocalObjects(tmp_path, Removing()).create(name, memoryview(b"entry"))
    assert (tmp_path / name).read_bytes() == b"entry"
    assert removals == []


def test_a_folder_of_the_journal_goes_when_it_is_empty(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.put_new(ENTRIES[0], b"entry")
    folder = (tmp_path / ENTRIES[0]).parent
    (folder / ".tmp-0123").write_text("cut off")
    store.remove_folder(f"journal/{7:020d}/{5:020d}")
    assert [path.name for path in folder.iterdir()] == [Path(ENTRIES[0]).name], "what is cut off goes, an object stays"
    store.delete(ENTRIES[0])
    store.remove_folder(f"journal/{7:020d}/{5:020d}")
    assert not folder.exists()
    store.remove_folder(f"journal/{7:020d}/{5:020d}")


def test_of_several_objects_one_that_fails_takes_those_after_it_along_and_leaves_nothing_unfinished(
    tmp_path: Path,
) -> None:
    store = Store.open(str(tmp_path))
    with mock.patch.object(os, "link", side_effect=OSError(28, "No space left on device")), pytest.raises(StoreFull):
        store.put_all([(name, b"data") for name in ENTRIES])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_nothing_longer_than_its_limit_is_read(store: Store) -> None:
    store.put_new(NAME, b"0123456789")
    assert store.get(NAME, 10) == b"0123456789"
    with pytest.raises(DamagedCheckpoint, match="longer than the 9 bytes"):
        store.get(NAME, 9)


def test_an_object_is_read_in_any_pieces(store: Store) -> None:
    store.put_new(NAME, b"0123456789")
    with store.opened(NAME, 10) as source:
        for start, length in ((3, 4), (0, 10), (8, 5), (10, 1), (12, 1)):
            target = bytearray(length)
            piece = b"0123456789"[start : start + length]
            assert source.read_into(memoryview(target), start) == len(piece)
            assert target == piece.ljust(length, b"\0")
    with store.opened(NAME, 9) as source:
        assert source.read_into(memoryview(bytearray(10)), 9) == 1, "that it is longer shows"
    store.delete(NAME)
    with pytest.raises(MissingObject, match=NAME), store.opened(NAME, 10):
        pass


def test_a_file_that_gives_a_little_at_a_time_is_read_whole_and_its_errors_have_a_class(tmp_path: Path) -> None:
    class Slow(RealFiles):
        def read_into(self, file: int, target: memoryview, start: int) -> int:
            if start == 8:
                raise OSError(5, "Input/output error")
            return super().read_into(file, target[:3], start)

    store = Store("slow", LocalObjects(tmp_path, Slow()))
    store.put_new(NAME, b"0123456789")
    target = bytearray(7)
    with store.opened(NAME, 10) as source:
        assert source.read_into(memoryview(target), 0) == 7
        assert target == b"0123456"
        with pytest.raises(DamagedCheckpoint, match=f"slow: {NAME} is there and cannot be read: .*Input/output error"):
            source.read_into(memoryview(target), 2)


def test_a_read_that_fails_once_is_no_damage_and_a_disk_that_fails_at_all_is_not_the_objects(tmp_path: Path) -> None:
    class Failing(RealFiles):
        number, times = errno.EIO, 1

        def read(self, path: Path, length: int) -> bytes:
            self.times -= 1
            if self.times >= 0:
                raise OSError(self.number, os.strerror(self.number))
            return super().read(path, length)

        def names(self, path: Path) -> list[str]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = Failing()
    store = Store("failing", LocalObjects(tmp_path, files))
    store.put_new(NAME, b"0123456789")
    assert store.get(NAME, 10) == b"0123456789"
    files.times, files.number = 1, errno.ETIMEDOUT
    with pytest.raises(StoreUnavailable):
        store.get(NAME, 10)
    with pytest.raises(StoreUnavailable, match="cannot list commits"):
        store.list("commits")


def test_what_is_no_regular_file_is_damage_and_never_waited_for(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.put_new(NAME, b"first")
    (tmp_path / NAME).unlink()
    for make in (
        os.mkfifo,
        os.mkdir,
        lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
        lambda path: path.symlink_to(path),
    ):
        make(tmp_path / NAME)
        with pytest.raises(DamagedCheckpoint, match=f"{NAME} is there and cannot be read"):
            store.get(NAME, 10)
        with pytest.raises(DamagedCheckpoint, match=f"{NAME} is there and cannot be read"), store.opened(NAME, 10):
            pass
        (tmp_path / NAME).rmdir() if (tmp_path / NAME).is_dir() else (tmp_path / NAME).unlink()


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../commits/00000000000000000001",
        f"packs/../{'0' * 64}",
        "commits/1",
        "packs/" + "A" * 64,
        f"{NAME}\n",
        "journal/x",
        f"journal/{1:020d}/{1:020d}",
        f"journal/{1:020d}/{1:020d}/{1:020d}-00-of-2",
        f"journal/{1:020d}/../{1:020d}/{1:020d}-0-of-2",
        f"journal/{1:020d}/{1:020d}/{1:020d}-0-of-2000000",
        "",
    ],
)
def test_no_name_leaves_the_store(store: Store, name: str) -> None:
    actions: list[Callable[[], object]] = [
        lambda: store.get(name, 10),
        lambda: store.opened(name, 10).__enter__(),
        lambda: store.put_new(name, b""),
        lambda: store.put_all([(name, b"")]),
        lambda: store.delete(name),
        lambda: store.check_create(name, b""),
    ]
    for action in actions:
        with pytest.raises(DamagedCheckpoint, match="not the name of an object"):
            action()


def test_foreign_files_are_not_seen(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.put_new(NAME, b"commit")
    for foreign in (
        "README",
        ".tmp-0123",
        "00000000000000000001.bak",
        "0000000000000000000x",
        "0" * 20,
        "9" * 20,
        f"{2**62:020d}",
    ):
        (tmp_path / "commits" / foreign).write_text("foreign")
    (tmp_path / "commits" / "folder").mkdir()
    assert store.list("commits") == [NAME]


def test_an_unfinished_file_is_swept_and_nothing_else(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    store.put_new(NAME, b"commit")
    (tmp_path / "commits" / ".tmp-0123").write_text("cut off")
    (tmp_path / "commits" / ".tmp-folder").mkdir()
    (tmp_path / "commits" / "notes").write_text("foreign")
    store.sweep()
    found = sorted(path.name for path in (tmp_path / "commits").iterdir())
    assert found == [".tmp-folder", "00000000000000000001", "notes"]


def test_reading_leaves_no_trace(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "absent"))
    assert store.list("packs") == []
    with pytest.raises(MissingObject):
        store.get(NAME, 10)
    assert not (tmp_path / "absent").exists()


def test_a_failed_listing_is_an_error_and_not_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "commits").write_text("a file in the folder's place")
    with pytest.raises(StoreError, match="a folder of its own"):
        Store.open(str(tmp_path)).list("commits")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nosuch://bucket/run", "nosuch"),
        ("memory://runs/../other", r"'\.\.'"),
        ("zip://a::memory://x.zip", "only if it is absent|zip"),
    ],
)
def test_a_url_that_cannot_be_a_store_is_refused(url: str, message: str) -> None:
    fsspec.filesystem("memory").pipe_file("/x.zip", b"PK\x05\x06" + bytes(18))
    with pytest.raises(StoreError, match=message):
        Store.open(url)


class Overwriting(MemoryFileSystem):
    """Ignores the wish to create only, as some file systems do."""

    cachable = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        super().pipe_file(path, value)


def over(filesystem: MemoryFileSystem, retry: Retry = Retry(deadline=0.0)) -> Store:  # noqa: B008
    return Store("test://", RemoteObjects(filesystem, "/over", retry))


def test_a_file_system_that_overwrites_is_found_out() -> None:
    store = over(Overwriting())
    store.put_new(NAME, b"claim")
    with pytest.raises(StoreError, match="overwrites"):
        store.check_create(NAME, b"claim")


class Failing(MemoryFileSystem):
    """Fails its first calls; each call may be applied before it fails."""

    cachable = False

    def __init__(self, errors: list[Exception], applied: bool = False) -> None:
        super().__init__()
        self.store = {}
        self.pseudo_dirs = [""]
        self.errors = errors
        self.applied = applied

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        if self.errors and not self.applied:
            raise self.errors.pop(0)
        super().pipe_file(path, value, mode=mode)
        if self.errors:
            raise self.errors.pop(0)

    def ls(self, path: str, detail: bool = True, **_: object) -> list[object]:
        if self.errors:
            raise self.errors.pop(0)
        found: list[object] = super().ls(path, detail=detail)
        return found

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        data: bytes = super().cat_file(path, start, end)
        return data[: len(data) // 2] if self.errors and self.errors.pop() else data


def patient() -> Retry:
    return Retry(deadline=1e9, sleep=lambda seconds: None)


def test_a_burst_of_transient_errors_is_survived() -> None:
    burst: list[Exception] = [OSError(16, "Please reduce your request rate"), TimeoutError(), ConnectionResetError()]
    store = over(Failing(burst.copy()), patient())
    assert store.put_new(NAME, b"commit")
    assert store.get(NAME, 10) == b"commit"
    assert over(Failing(burst.copy()), patient()).list("commits") == []


def test_a_success_reported_as_a_failure_is_recognized() -> None:
    store = over(Failing([TimeoutError()], applied=True), patient())
    assert store.put_new(NAME, b"commit")
    content = content_name(b"pack")
    assert over(Failing([TimeoutError()], applied=True), patient()).put_content("packs", b"pack", content) is False


def test_a_short_answer_is_asked_for_again() -> None:
    filesystem = Failing([])
    store = over(filesystem, patient())
    store.put_new(NAME, b"0123456789")
    filesystem.errors = [TimeoutError()]
    assert store.get(NAME, 10) == b"0123456789"
    filesystem.errors = [TimeoutError()]
    with store.opened(NAME, 10) as source:
        assert source.read_into(memoryview(bytearray(10)), 0) == 10


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (PermissionError("Access Denied"), StoreError, "Access Denied.*credentials"),
        (OSError(28, "No space left on device"), StoreFull, "No space left on device.*Free space"),
        (OSError(30, "Read-only file system"), StoreError, "Read-only file system.*may read, write"),
        (FileNotFoundError("The specified bucket does not exist"), StoreError, "bucket or folder exists"),
        (TimeoutError(), StoreUnavailable, "TimeoutError"),
        (OSError(5, "Input/output error"), StoreUnavailable, "Input/output error"),
    ],
)
def test_each_failure_has_a_class_and_says_what_to_do(error: Exception, kind: type[StoreError], message: str) -> None:
    with pytest.raises(StoreError, match=message) as raised:
        over(Failing([error])).put_new(NAME, b"commit")
    assert type(raised.value) is kind


def test_a_lasting_listing_error_is_never_an_empty_store() -> None:
    with pytest.raises(StoreUnavailable, match="cannot list commits"):
        over(Failing([OSError(5, "Input/output error")])).list("commits")
