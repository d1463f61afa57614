"""Doing again, on a restored snapshot, what the journal says that updates consumed."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradwire.checkpoint import Checkpointer, Commit
from gradwire.checkpoint.journal import Entry
from gradwire.checkpoint.recovery import Recovery
from gradwire.checkpoint.tree import decode
from gradwire.comm import CommError, Encoded
from gradwire.trainer.errors import ReplayError
from gradwire.trainer.journaling import ENCODED, implementation, state_digest
from gradwire.trainer.state import put_back_own, put_back_progress
from gradwire.trainer.strategies import Reduced, Strategy

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")


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
        _replay_one(trainer, update, entries)
        found = (_own(trainer, entries).digest, (known or {}).get(update))
        digests = {digest for digest in found if digest is not None}
        if digests:
            _check(trainer, update, digests)
            proven.append(update)
        reached, held = update, entries
    if held is not None:
        _put_back_small(trainer, held)
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


def _check(trainer: "Trainer", update: int, digests: set[str]) -> None:
    same = digests == {state_digest(trainer)}
    if not all(int(each) for each in trainer.strategy.gather(torch.tensor([int(same)]))):
        raise ReplayError(f"after update {update} the replayed state is another than the one that was journalled")


def _replay_one(trainer: "Trainer", update: int, entries: Sequence[Entry]) -> None:
    scalars = entries[0].scalars
    here = implementation(trainer.optimizer)
    if scalars["optimizer"] != here:
        raise ReplayError(f"update {update} was made by {scalars['optimizer']}, and this is {here}")
    layout, mine = scalars.get("layout", Strategy.layout), trainer.strategy.layout
    if layout != mine:
        raise ReplayError(f"gradients of update {update} were journalled as {layout}, and this run has {mine}")
    try:
        trainer.strategy.put_back([_reduced(entry) for entry in entries])
    except CommError as error:
        raise ReplayError(f"update {update} cannot be done again: {error}") from error
    groups = trainer.optimizer.param_groups
    configured = [dict(group) for group in groups]
    for group, values in zip(groups, json.loads(str(scalars["groups"])), strict=True):
        group.update({name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    trainer.updater.replay(
        int(scalars["targets"]), int(scalars["divisor"]), float(scalars["shrinking"]), kept=bool(scalars["kept"])
    )
    for group, values in zip(groups, configured, strict=True):
        group.update(values)
    own = _own(trainer, entries)
    for name, buffer in trainer.model.named_buffers():
        buffer.copy_(own.tensors[f"buffer/{name}"].data)
    if trainer.average is not None and scalars["kept"]:
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
