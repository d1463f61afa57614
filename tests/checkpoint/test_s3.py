"""A real S3 server (moto's) over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gradwire.checkpoint import Checkpointer, CheckpointWriteError, NoCheckpoint, StoreError, WriterFenced, load_weights
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.journal_trim import trim
from gradwire.checkpoint.journal_writer import JournalWriter
from gradwire.checkpoint.store import Store
from tests.checkpoint.journals import claimed, committed, gradient, put
from tests.checkpoint.states import same, same_state, state_at


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem: Any = s3fs.S3FileSystem(use_listings_cache=False)
    filesystem.mkdir("runs")
    yield "s3://runs/one"
    filesystem.rm("runs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


def test_save_restore_and_retention_work_as_on_a_disk(bucket: str) -> None:
    checkpointer = Checkpointer(bucket, keep_last=2, keep_best=1)
    for update, loss in enumerate([3.0, 1.0, 2.0, 4.0, 5.0]):
        checkpointer.save(state_at(update), {"updates": update}, {"eval/loss": loss})
    assert [commit.update for commit in checkpointer.commits()] == [1, 3, 4]
    assert len(Store.open(bucket).list("packs")) == len(Store.open(bucket).list("parts")) == 3
    assert same_state(Checkpointer(bucket).restore()[0], state_at(4))
    assert same_state(Checkpointer(bucket).restore(1)[0], state_at(1))
    weights, commit = load_weights(bucket)
    assert commit.update == 4
    assert same(weights, state_at(4).shared["model"])


def test_a_state_of_several_packs_round_trips(bucket: str) -> None:
    Checkpointer(bucket).save(state_at(1, 20 * 2**20), {"updates": 1})
    assert len(Store.open(bucket).list("packs")) > 1
    assert same_state(Checkpointer(bucket).restore()[0], state_at(1, 20 * 2**20))


def test_a_writer_that_was_taken_over_is_stopped(bucket: str) -> None:
    zombie = Checkpointer(bucket)
    zombie.save(state_at(1), {"updates": 1})
    successor = Checkpointer(bucket)
    successor.restore()
    successor.save(state_at(2), {"updates": 2})
    with pytest.raises(WriterFenced):
        zombie.save(state_at(3), {"updates": 3})
    assert same_state(Checkpointer(bucket).restore()[0], state_at(2))


def test_a_damaged_object_is_named_and_the_one_before_used(bucket: str) -> None:
    import s3fs

    checkpointer = Checkpointer(bucket)
    checkpointer.save(state_at(1), {"updates": 1})
    commit = checkpointer.save(state_at(2), {"updates": 2})
    filesystem: Any = s3fs.S3FileSystem()
    filesystem.pipe_file(f"{bucket}/{commit.parts[0].name}", b"rotten")
    state, restored = checkpointer.restore()
    assert restored.update == 1
    assert same_state(state, state_at(1))
    assert commit.name in checkpointer.damaged[0]


def test_a_bucket_that_is_not_there_is_named(bucket: str) -> None:
    with pytest.raises(CheckpointWriteError, match=r"s3://absent/run: cannot write .*the bucket or folder exists"):
        Checkpointer("s3://absent/run").save(state_at(1), {"updates": 1})
    with pytest.raises(NoCheckpoint, match="s3://absent/run holds no snapshot; check the URL"):
        Checkpointer("s3://absent/run").restore()


def test_missing_credentials_are_an_error_and_not_an_empty_store(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(StoreError, match="credentials"):
        Checkpointer(bucket).restore()


def test_a_journal_is_written_sealed_replayed_and_trimmed_as_on_a_disk(bucket: str) -> None:
    store = Store.open(bucket)
    writer = claimed(store)
    base = committed(writer, 10)
    with JournalWriter(store, base, writer.epoch, 0, 1, "update") as journal:
        for update in (11, 12):
            journal.append(update, {"lr": 0.1}, {"gradient": Blob(gradient(update))})
            journal.wait(update)
    reader = JournalReader(Store.open(bucket), base)
    successor = claimed(store, base, reader.seal(12))
    put(store, base, writer.epoch, 13)  # by the writer before, who has not noticed
    put(store, base, successor.epoch, 13)
    reader = JournalReader(store, base)
    assert reader.updates() == [11, 12, 13]
    assert reader.read(13)[0].place.epoch == successor.epoch
    assert torch.equal(reader.read(12)[0].tensors["gradient"].data, gradient(12))
    newer = committed(successor, 13)
    assert trim(store, [newer], lambda commit: None) == 4
    assert store.folders("journal") == []
