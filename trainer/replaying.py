"""Doing again, on a restored snapshot, what the journal says that updates consumed."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwire.checkpoint import Checkpointer, Commit, DamagedCheckpoint
from gradwire.checkpoint.journal import Entry
from gradwire.checkpoint.recovery import Recovery
from gradwire.checkpoint.tree import decode
from gradwire.comm import CommError, Encoded
from gradwire.trainer.errors import ReplayError, StateMismatchError
from gradwire.trainer.journaling import ENCODED, implementation, state_digest
from gradwire.trainer.state import put_back_own, put_back_progress
from gradwire.trainer.strategies import Reduced, Strategy

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")
# what reading raises where an entry is of another version, or of another model or optimizer
_MISFITS = (ArithmeticError, AttributeError, DamagedCheckpoint, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Replayed:
    """How far a replay went.

    Args:
        update: The last that was done again, or that of the snapshot.
        proven: Updates after which the state had the digest that was journalled or saved.
        fast: Whether ranks go on with what they carried over at the snapshot, which is not what they had by then.
    """

    update: int
    proven: tuple[int, ...] = ()
    fast: bool = False


def replay(trainer: "Trainer", checkpointer: Checkpointer, base: Commit, last: int | None = None) -> Replayed:
    """Do again what the journal holds after a restored snapshot, up to an update. A collective.

    Raises:
        ReplayError: the replayed state is not the one that was journalled, or it cannot be replayed here. The trainer's
            state is of no use then: restore the snapshot again.
    """
    recovery = checkpointer.recovery(base)
    started = time.perf_counter()
    done = step_through(trainer, recovery, last, exact=trainer.settings.recovery == "exact")
    if last is not None and done.update < last:
        raise ReplayError(
            f"update {last} cannot be reached: the journal after the snapshot of update {base.update} counts up to "
            f"update {done.update} only. RUN@{done.update} goes on from there; `gradwire checkpoint fsck` tells what "
            "is damaged"
        )
    if done.update > base.update:
        checkpointer.continue_at(recovery, done.update)
        seconds = time.perf_counter() - started
        log.info("replayed updates %d to %d from the journal in %.2f s", base.update + 1, done.update, seconds)
    return done


def step_through(
    trainer: "Trainer",
    recovery: Recovery,
    last: int | None = None,
    *,
    exact: bool = False,
    known: Mapping[int, str] | None = None,
) -> Replayed:
    """Replay, without a word to the store.

    Args:
        trainer: Holds the state of the recovery's base.
        recovery: What follows.
        last: The update to stop at; all there are where None.
        exact: Replay nothing where ranks would go on with something else than they had then.
        known: Digests of the state after some updates, from elsewhere.

    Raises:
        ReplayError: as `replay`.
    """
    proven, held, reached = [], None, recovery.base.update
    for update, entries in recovery.entries(last):
        if exact and entries[0].scalars.get("carried", False):
            _refuse_fast(recovery, last)
            break
        _replay_one(trainer, _understood(trainer, update, entries))
        found = (_own(trainer, entries).digest, (known or {}).get(update))
        digests = {digest for digest in found if digest is not None}
        if digests:
            _check(trainer, update, digests)
            proven.append(update)
        reached, held = update, entries
    if held is not None:
        try:
            _put_back_small(trainer, held)
        except (CommError, StateMismatchError):
            raise
        except _MISFITS as misfit:
            raise _replay_error(reached, misfit) from misfit
    return Replayed(reached, tuple(proven), held is not None and bool(held[0].scalars.get("carried", False)))


def _refuse_fast(recovery: Recovery, last: int | None) -> None:
    """Say why the journal is not replayed; that is an error where an update was asked for that needs it."""
    base = recovery.base.update
    reason = "codecs carried over what they lost, which the journal does not tell"
    if last is not None:
        raise ReplayError(
            f"update {last} can be reached from the snapshot of update {base} only without its exact bits ({reason}): "
            "checkpoint.recovery=fast does that"
        )
    log.warning("updates %d to %d are computed again (checkpoint.recovery=exact): %s", base + 1, recovery.last, reason)


def _on_all(trainer: "Trainer", held: bool) -> bool:
    """Whether something holds on every rank. A collective."""
    return all(int(each) for each in trainer.strategy.gather(torch.tensor([int(held)])))


def _check(trainer: "Trainer", update: int, digests: set[str]) -> None:
    if not _on_all(trainer, digests == {state_digest(trainer)}):
        raise ReplayError(f"after update {update} the replayed state is another than the one that was journalled")


@dataclass(frozen=True)
class _Consumed:
    """What an update consumed beside its gradients, which the parameters hold already; it fits this run.

    Args:
        groups: Hyperparameters of each of the optimizer's groups.
        targets: Over which the loss was a mean.
        divisor: That the gradients were divided by.
        shrinking: What clipping multiplied them by.
        kept: Whether the update was applied.
        buffers: The model's afterwards, by name.
    """

    groups: Sequence[Mapping[str, Any]]
    targets: int
    divisor: int
    shrinking: float
    kept: bool
    buffers: Mapping[str, Tensor]


def _understood(trainer: "Trainer", update: int, entries: Sequence[Entry]) -> _Consumed:
    """Read an update's entries before anything follows from them; ranks agree whether all of them can. A collective.

    Raises:
        ReplayError: a rank cannot, and what it found where it is this one.
    """
    consumed: _Consumed | None = None
    misfit: Exception | None = None
    try:
        consumed = _consumed(trainer, update, entries)
    except _MISFITS as error:
        misfit = error
    agreed = _on_all(trainer, consumed is not None)
    if misfit is not None:
        raise _replay_error(update, misfit) from misfit
    if consumed is None or not agreed:
        raise ReplayError(f"update {update} cannot be done again by another rank, which says why")
    return consumed


def _replay_error(update: int, misfit: Exception) -> ReplayError:
    if isinstance(misfit, ReplayError):
        return misfit
    return ReplayError(
        f"update {update} cannot be done again: what was journalled is of another version or another model "
        f"({type(misfit).__name__}: {misfit})"
    )


def _consumed(trainer: "Trainer", update: int, entries: Sequence[Entry]) -> _Consumed:
    scalars = entries[0].scalars
    made_by, here = scalars["optimizer"], implementation(trainer.optimizer)
    if made_by != here:
        raise ReplayError(f"update {update} was made by {made_by}, and this is {here}")
    layout, mine = scalars.get("layout", Strategy.layout), trainer.strategy.layout
    if layout != mine:
        raise ReplayError(f"gradients of update {update} were journalled as {layout}, and this run has {mine}")
    if scalars["members"] != trainer.members:
        raise ReplayError(
            f"the optimizer's groups hold other parameters than at update {update}: set optimizer.groups and "
            "optimizer.weight_decay as they were, or the model as it was"
        )
    groups = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        for values in json.loads(str(scalars["groups"]))
    ]
    for group, values in zip(trainer.optimizer.param_groups, groups, strict=True):
        if odd := sorted(values.keys() - group.keys()) or sorted({"params"} & values.keys()):
            raise ReplayError(f"update {update} was journalled with hyperparameters that this optimizer has not: {odd}")
    tensors = _own(trainer, entries).tensors
    buffers = {name: tensors[f"buffer/{name}"].data for name, _ in trainer.model.named_buffers()}
    for name, buffer in trainer.model.named_buffers():
        found, here = (f"{each.dtype} {tuple(each.shape)}" for each in (buffers[name], buffer))
        if found != here:
            raise ReplayError(f"update {update} left a buffer {name} of {found}; this model's is {here}")
    trainer.strategy.put_back([_reduced(entry) for entry in entries])
    numbers = int(scalars["targets"]), int(scalars["divisor"]), float(scalars["shrinking"])
    return _Consumed(groups, *numbers, bool(scalars["kept"]), buffers)


def _replay_one(trainer: "Trainer", consumed: _Consumed) -> None:
    groups = trainer.optimizer.param_groups
    configured = [dict(group) for group in groups]
    for group, values in zip(groups, consumed.groups, strict=True):
        group.update(values)
    trainer.updater.replay(consumed.targets, consumed.divisor, consumed.shrinking, kept=consumed.kept)
    for group, values in zip(groups, configured, strict=True):
        group.update(values)
    for name, buffer in trainer.model.named_buffers():
        buffer.copy_(consumed.buffers[name])
    if trainer.average is not None and consumed.kept:
        trainer.average.update()


def _own(trainer: "Trainer", entries: Sequence[Entry]) -> Entry:
    """This rank's entry of an update; the first one's where there were more or fewer ranks."""
    return entries[trainer.strategy.rank if len(entries) == trainer.strategy.world_size else 0]


def _put_back_small(trainer: "Trainer", entries: Sequence[Entry]) -> None:
    small = [
        decode(json.loads(str(entry.scalars["progress"])), lambda n, e=entry: e.tensors[f"small/{n}"].data, "progress")  # type: ignore[misc]
        for entry in entries
    ]
    put_back_progress(trainer, small[0]["shared"])
    strategy = trainer.strategy
    moved = len(entries) != strategy.world_size
    if entries[0].scalars.get("carried", False):  # what ranks carry over stays that of the snapshot
        journalled = {} if moved else small[strategy.rank]["own"]
        own = {**strategy.state_dict(), **journalled}
        put_back_own(trainer, own, lambda: [own], moved=False)
        return
    own = {} if moved else small[strategy.rank]["own"]
    put_back_own(trainer, own, lambda: [each["own"] for each in small], moved)


def _reduced(entry: Entry) -> Reduced:
    shares, dtypes = [], {}
    for name, blob in entry.tensors.items():
        kind, _, place = name.partition("/")
        if kind == "gradient":
            bucket = int(place.partition("/")[0])
            codec = blob.coding.removeprefix(ENCODED) if blob.coding.startswith(ENCODED) else None
            shares.append(Encoded(bucket, codec, blob.ranges, blob.data.view(torch.uint8)))
            dtypes[bucket] = blob.data.dtype
    presence = bytes.fromhex(str(entry.scalars["presence"]))
    return Reduced(tuple(shares), tuple(dtypes[bucket] for bucket in sorted(dtypes)), presence)
