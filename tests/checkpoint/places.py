"""Fixtures: an empty place for a store on a disk, in memory, and on a real S3 server (moto's) over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradwire.checkpoint import Checkpointer
from gradwire.checkpoint.snapshot import read_part
from gradwire.checkpoint.store import Store
from tests.checkpoint.states import state_at


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["path", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "path":
        yield str(tmp_path / "store")
        return
    if request.param == "memory":
        yield f"memory:/{tmp_path}/store"
        return
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3_endpoint"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem: Any = s3fs.S3FileSystem(use_listings_cache=False)
    filesystem.mkdir("runs")
    yield "s3://runs/one"
    filesystem.rm("runs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def save(url: str, updates: range, losses: dict[int, float] | None = None, keep_last: int = 99) -> Checkpointer:
    """Save the states of some updates, going on from what is there."""
    checkpointer = Checkpointer(url, keep_last=keep_last, keep_best=0)
    if checkpointer.latest() is not None:
        checkpointer.restore()
    for update in updates:
        loss = (losses or {}).get(update)
        checkpointer.save(state_at(update), {"updates": update}, {} if loss is None else {"eval/loss": loss})
    return checkpointer


def objects(url: str) -> set[str]:
    store = Store.open(url)
    return {name for folder in ("parts", "packs", "commits", "tags") for name in store.list(folder)}


def newest_objects(folder: Path) -> dict[str, Path]:
    """The commit, the part and the pack that only the newest snapshot has, by the folder that each is in.

    Not by their times: those of two quick saves are the same where the kernel's clock has not moved between them.
    """
    store, commits = Store.open(str(folder)), Checkpointer(str(folder)).commits()
    (part,) = commits[-1].parts
    older = {pack.name for each in commits[:-1] for ref in each.parts for pack in read_part(store, ref).packs}
    (pack,) = [pack for pack in read_part(store, part).packs if pack.name not in older]
    return {"commits": folder / commits[-1].name, "parts": folder / part.name, "packs": folder / pack.name}


def corrupt(url: str, name: str, data: bytes = b"rotten") -> None:
    """Put other bytes under an object's name."""
    from fsspec.core import url_to_fs

    filesystem, root = url_to_fs(url, use_listings_cache=False)
    filesystem.pipe_file(f"{root}/{name}", data)
