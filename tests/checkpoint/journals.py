"""Journals to test with."""

import torch

from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.commit import Commit, Seal
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.journal import Entry, Place, entry_bytes
from gradwire.checkpoint.snapshot import PartRef
from gradwire.checkpoint.store import Store


def gradient(update: int, rank: int = 0) -> torch.Tensor:
    return torch.arange(100, dtype=torch.float32) * update + rank


def claimed(store: Store, base: Commit | None = None, seal: Seal | None = None) -> CommitWriter:
    """A writer that has just claimed its epoch."""
    writer = CommitWriter(store, "writer")
    if base is not None:
        writer.continue_from(base, seal)
    writer.claim()
    return writer


def committed(writer: CommitWriter, update: int) -> Commit:
    part = PartRef(0, "a" * 64, 1)
    return writer.publish(Draft("interval", {"updates": update}, {}, 1, {"shared": (), "local": ()}, (part,)))


def an_entry(place: Place) -> Entry:
    return Entry(place, {"lr": 0.1 * place.update}, {"gradient": Blob(gradient(place.update, place.rank))})


def put(store: Store, base: Commit, epoch: int, *updates: int, ranks: tuple[int, ...] = (0,), size: int = 1) -> None:
    """Put the entries of some ranks of `size` into a journal."""
    for update in updates:
        for rank in ranks:
            entry = an_entry(Place(base.sequence, epoch, update, rank, size))
            assert store.put_new(entry.place.name, entry_bytes(entry))
