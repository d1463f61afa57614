"""Going on from what a store holds: a snapshot, and what was journalled after it."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from gradwire.checkpoint import Checkpointer, Commit, NoCheckpoint, State, Wanted, WorldSizeMismatch
from gradwire.trainer.errors import ReplayError
from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")


@dataclass(frozen=True)
class Restored:
    """What was read back.

    Args:
        state: What is shared, and this rank's own.
        everyone: Gives every rank's own state.
        moved: Whether more or fewer ranks had saved it.
    """

    state: State
    everyone: Callable[[], Sequence[Mapping[str, Any]]]
    moved: bool = False


def restore(
    take: Callable[[Restored], None], checkpointer: Checkpointer, ref: str | None, wanted: Wanted | None = None
) -> Commit | None:
    """Put back the snapshot of `latest`, an update, or `latest-if-any`; None starts anew.

    Raises:
        CheckpointError: what was asked for is missing or damaged.
    """
    if ref is None:
        return None
    try:
        restored, commit = read(checkpointer, "latest" if ref.startswith("latest") else int(ref), wanted)
    except NoCheckpoint:
        if ref != "latest-if-any":
            raise
        return None
    take(restored)
    return commit


def recover(trainer: Trainer, checkpointer: Checkpointer, ref: str | None) -> None:
    """Put back a snapshot, and do again what the journal holds after it, up to what was asked for.

    Raises:
        CheckpointError: what was asked for is missing or damaged.
        ReplayError: an update was asked for that the journal does not lead to any more.
    """
    last = int(ref) if ref is not None and ref.isdigit() else None
    start = ref if last is None else str(checkpointer.base_of(last))

    began = time.perf_counter()
    wanted = trainer.strategy.wanted(trainer.model)
    commit = restore(partial(put_back, trainer), checkpointer, start, wanted)
    if commit is None:
        return
    log.info("restored the snapshot of update %d in %.2f s", commit.update, time.perf_counter() - began)
    try:
        reached = trainer.replay(commit, last)
    except ReplayError as error:
        if last is not None and last != commit.update:
            raise
        log.warning("%s: the run goes on from the snapshot of update %d instead", error, commit.update)
        restore(partial(put_back, trainer), checkpointer, str(commit.update), wanted)
        reached = trainer.clock.updates
    log.info("continuing from update %d", reached)


def put_back(trainer: Trainer, restored: Restored) -> None:
    """Give the trainer what was read back."""
    trainer.restore(restored.state, restored.everyone, moved=restored.moved)


def read(
    checkpointer: Checkpointer, ref: int | Literal["latest"], wanted: Wanted | None = None
) -> tuple[Restored, Commit]:
    """A snapshot, whatever number of ranks saved it; of tensors in slices what is wanted.

    Raises:
        CheckpointError: what was asked for is missing or damaged.
    """
    try:
        state, commit = checkpointer.restore(ref, wanted)
    except WorldSizeMismatch:
        shared, everyone, commit = checkpointer.restore_resized(ref, wanted)
        if commit.world_size == checkpointer.ranks.size:  # what the first attempt found has turned out damaged since
            return Restored(State(shared, everyone[checkpointer.ranks.rank]), lambda: everyone), commit
        return Restored(State(shared), lambda: everyone, moved=True), commit
    return Restored(state, lambda: checkpointer.restore_resized(commit.update, wanted)[1]), commit
