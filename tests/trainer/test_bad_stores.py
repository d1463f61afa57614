"""Stores that are damaged, foreign, too new, or not ours to use: what the commands say, and the code they end with."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointWriteError,
    StoreError,
    UnsupportedFormat,
    load_weights,
)
from gradwire.trainer.launch.failure import exit_code_of
from tests.checkpoint.places import newest_objects, s3_endpoint, save  # noqa: F401
from tests.checkpoint.states import same_state, state_at
from tests.trainer.commands import Done, gradwire


def checkpoint(*arguments: str) -> Done:
    return gradwire("checkpoint", *arguments)


def reading(url: str, update: int, folder: Path) -> dict[str, Done]:
    """What comes of every command that reads a snapshot."""
    return {
        "show": checkpoint("show", f"{url}@{update}"),
        "diff": checkpoint("diff", f"{url}@1", f"@{update}"),
        "fork": checkpoint("fork", f"{url}@{update}", str(folder / "forked")),
        "export": checkpoint("export", f"{url}@{update}", str(folder / "weights.safetensors")),
        "fsck": checkpoint("fsck", url),
    }


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the updates 1 and 2."""
    save(str(tmp_path / "store"), range(1, 3))
    return tmp_path / "store"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, key: str, value: object) -> None:
    """Change a commit's document, and its digest with it."""
    document = json.loads(path.read_bytes().split(b"\n")[0])
    line = json.dumps({**document, key: value}).encode()
    path.write_bytes(b"%s\n%s\n" % (line, hashlib.sha256(line).hexdigest().encode()))


@pytest.mark.parametrize(
    ("kind", "harm", "message", "unaffected"),
    [
        ("packs", Path.unlink, "is missing", {"show"}),
        ("packs", cut, "bytes", {"show"}),
        ("packs", flip, "altered", {"show"}),
        ("parts", Path.unlink, "is missing", set()),
        ("parts", cut, "is altered", set()),
        ("commits", cut, "cut short or altered", set()),
    ],
    ids=["pack missing", "pack cut", "pack altered", "part missing", "part cut", "commit cut"],
)
def test_every_command_that_meets_damage_names_it_and_returns_3(
    store: Path, tmp_path: Path, kind: str, harm: Callable[[Path], None], message: str, unaffected: set[str]
) -> None:
    damaged = newest_objects(store)[kind]
    harm(damaged)
    for command, done in reading(str(store), 2, tmp_path).items():
        assert command != "fsck" or "with --repair removes what cannot be restored" in done.stdout
        assert done.returncode == (0 if command in unaffected else 3), (command, done)
        if command not in unaffected:
            said = done.stdout + done.stderr
            assert "Traceback" not in said
            assert kind == "commits" or damaged.name[:8] in said, (command, said)
            assert message in said, (command, said)
    assert not (tmp_path / "forked").exists()
    assert not (tmp_path / "weights.safetensors").exists()
    assert checkpoint("show", f"{store}@1").returncode == 0
    assert checkpoint("fsck", str(store), "--repair").returncode == 0
    assert checkpoint("fsck", str(store)).returncode == 0
    assert same_state(Checkpointer(store).restore()[0], state_at(1))


def test_a_format_of_the_future_is_refused_by_every_command_and_nothing_is_removed(store: Path, tmp_path: Path) -> None:
    rewrite(newest_objects(store)["commits"], "format", 999)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    commands = {
        **reading(str(store), 2, tmp_path),
        "log": checkpoint("log", str(store)),
        "tag": checkpoint("tag", str(store), "name"),
        "prune": checkpoint("prune", str(store), "--keep-last", "1"),
        "repair": checkpoint("fsck", str(store), "--repair"),
    }
    for command, done in commands.items():
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), (command, done)
        assert "format 999" in done.stderr
        assert "install a newer gradwire" in done.stderr
    for action in (lambda: load_weights(str(store)), lambda: Checkpointer(store).restore()):
        with pytest.raises(UnsupportedFormat) as raised:
            action()
        assert exit_code_of(raised.value) == 3
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_foreign_files_are_no_damage_and_stay(store: Path, tmp_path: Path) -> None:
    foreign = [store / "README", store / "commits" / "notes.txt", store / "packs" / "x.pt", store / "tags" / ".hidden"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("foreign")
    for command, done in reading(str(store), 2, tmp_path).items():
        assert done.returncode == 0, (command, done)
    assert checkpoint("prune", str(store), "--keep-last", "1").returncode == 0
    assert checkpoint("fsck", str(store), "--repair").returncode == 0
    assert all(path.read_text() == "foreign" for path in foreign)


def test_a_folder_that_is_no_store_holds_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("foreign")
    for command in (["log"], ["show"], ["fsck"]):
        done = checkpoint(*command, str(tmp_path))
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), (command, done)
        assert "holds no snapshot" in done.stdout + done.stderr


@pytest.mark.parametrize("command", [["log"], ["show"], ["fsck"], ["prune"], ["tag"]])
def test_a_remote_path_with_dots_is_refused(command: list[str]) -> None:
    done = checkpoint(*command, "memory://runs/../secret")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'..'" in done.stderr
    assert "write it out" in done.stderr


@pytest.fixture
def guarded(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:  # noqa: F811
    """A store with the update 1, in a bucket whose server asks who you are; a user there may read and list only."""
    import s3fs
    from botocore.session import Session

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem(use_listings_cache=False)
    filesystem.mkdir("guarded")
    save("s3://guarded/run", range(1, 2))
    iam = Session().create_client("iam")
    iam.create_user(UserName="reader")
    allowed = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*", "s3:Head*"], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    _ask_who(s3_endpoint, "0")
    monkeypatch.setenv("READER_ID", key["AccessKeyId"])
    monkeypatch.setenv("READER_SECRET", key["SecretAccessKey"])
    yield "s3://guarded/run"
    _ask_who(s3_endpoint, "inf")
    filesystem.rm("guarded", recursive=True)
    iam.delete_access_key(UserName="reader", AccessKeyId=key["AccessKeyId"])
    iam.delete_user_policy(UserName="reader", PolicyName="read")
    iam.delete_user(UserName="reader")
    s3fs.S3FileSystem.clear_instance_cache()


def _ask_who(endpoint: str, after: str) -> None:
    """Let the server check signatures and policies after so many requests."""
    headers = {"Content-Type": "text/plain"}
    urlopen(Request(f"{endpoint}/moto-api/reset-auth", after.encode(), headers), timeout=240).close()


def test_wrong_credentials_are_told_and_the_store_never_counts_as_empty(guarded: str) -> None:
    with pytest.raises(StoreError, match="the credentials"):
        Checkpointer(guarded).restore()
    with pytest.raises(CheckpointWriteError, match="the credentials"):
        Checkpointer(guarded).save(state_at(2), {"updates": 2})
    for command in ("log", "show", "fsck", "prune"):
        done = checkpoint(command, guarded)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (command, done)
        assert "the credentials" in done.stderr


def test_a_bucket_that_may_only_be_read_is_restored_from_and_refuses_the_rest(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", os.environ["READER_ID"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", os.environ["READER_SECRET"])
    s3fs.S3FileSystem.clear_instance_cache()
    assert checkpoint("fsck", guarded).returncode == 0
    reader = Checkpointer(guarded)
    assert same_state(reader.restore()[0], state_at(1))
    with pytest.raises(CheckpointWriteError, match=r"cannot write commits/.*you may read, write, list"):
        reader.save(state_at(2), {"updates": 2})
    refused = checkpoint("tag", f"{guarded}@1", "gold")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "you may read, write, list" in refused.stderr
    assert [commit.update for commit in reader.commits()] == [1]
