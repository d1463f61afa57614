"""Recovery as it is after a kill: a snapshot, and the updates that were journalled since."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gradwire.checkpoint.benchmark.contenders import Ours
from gradwire.checkpoint.benchmark.training_state import TrainingState
from gradwire.checkpoint.blobs import Blob


@dataclass(frozen=True)
class Journalled:
    """Updates that were journalled.

    Args:
        base: The update of the snapshot before them.
        appending: Seconds that an update waited for the journal, on average.
        written: Bytes an update, of all ranks.
    """

    base: int
    appending: float
    written: float


@dataclass(frozen=True)
class Recovered:
    """What recovery took, in seconds.

    Args:
        updates: How many were journalled and replayed.
        appending: Seconds that an update waited for the journal, on average.
        written: Bytes of the journal an update, of all ranks.
        restoring: Reading the snapshot.
        replaying: Reading the journal and applying its gradients.
    """

    updates: int
    appending: float
    written: float
    restoring: float
    replaying: float


def journal(ours: Ours, state: TrainingState, updates: int) -> Journalled:
    """Train on, journalling every update since our last snapshot: each rank its share of the gradient, in full."""
    base = ours.checkpointer.latest()
    assert base is not None
    before, waited = ours.place.sizes(), 0.0
    dist.barrier()
    with ours.checkpointer.journal(base, base.update, "update") as writer:
        for _ in range(updates):
            gradient = state.advance()
            start, stop = _share(len(gradient))
            if state.update > base.update + 1:
                started = time.perf_counter()
                writer.wait(state.update - 1)
                waited += time.perf_counter() - started
            started = time.perf_counter()
            writer.append(state.update, {}, {"gradient": Blob(gradient[start:stop], ((start, stop),))})
            waited += time.perf_counter() - started
    dist.barrier()
    written = sum(size for name, size in ours.place.sizes().items() if name not in before)
    return Journalled(base.update, waited / updates, written / updates)


def recover(ours: Ours, state: TrainingState, journalled: Journalled) -> tuple[Recovered, list[str]]:
    """Do what a new process would do, and name what is not as it was before; the state is what was recovered."""
    checkpointer, recovered = ours.opened(), TrainingState(*state.arguments)
    started = time.perf_counter()
    restored, base = checkpointer.restore(journalled.base)
    recovered.load(restored.shared["model"], base.update)
    restoring = time.perf_counter() - started
    gradient = torch.empty(state.numbers)
    for _, entries in checkpointer.recovery(base).entries():
        for entry in entries:
            blob = entry.tensors["gradient"]
            ((start, stop),) = blob.ranges
            gradient[start:stop] = blob.data
        recovered.apply(gradient)
    replaying = time.perf_counter() - started - restoring
    updates = state.update - journalled.base
    wrong = [
        f"{name} is not what it was after update {state.update}" for name in state.differences(recovered.tensors())
    ]
    if recovered.update != state.update:
        wrong.append(f"recovery reached update {recovered.update} of {state.update}")
    return Recovered(updates, journalled.appending, journalled.written, restoring, replaying), wrong


def _share(length: int) -> tuple[int, int]:
    """This rank's part of what all hold: from, to."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return length * rank // ranks, length * (rank + 1) // ranks
