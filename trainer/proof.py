"""`gradwire resume --prove`: updates are done again from a snapshot and compared before the run goes on."""

import logging
from collections.abc import Sequence

from gradwire.checkpoint import Checkpointer, Commit
from gradwire.trainer.errors import NothingToProveError, ProofError, ReplayError
from gradwire.trainer.journaling import state_digest
from gradwire.trainer.recovery import put_back, read
from gradwire.trainer.replaying import Replayed, step_through
from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")


def prove(trainer: Trainer, checkpointer: Checkpointer, ref: str | None, most: int) -> None:
    """Replay up to so many journalled updates and compare what comes out with what was journalled and saved.

    Begins at the newest snapshot from which there is something to compare. The store stays as it is, and the trainer's
    state is of no use afterwards: recover it. A collective.

    Args:
        trainer: Of the run.
        checkpointer: Its store.
        ref: What the run is to go on from, as in `recover`.
        most: Updates to replay.

    Raises:
        NothingToProveError: there is no journal.
        ProofError: something else came out, or an entry of the journal is damaged.
        CheckpointError: a snapshot is damaged, or the store cannot be read.
    """
    asked = int(ref) if ref is not None and ref.isdigit() else None
    reach = checkpointer.reach()
    snapshots = [update for update, _ in reach]
    stretches = [(base, min(last, base + most, *([] if asked is None else [asked]))) for base, last in reach]
    stretches = [(base, last) for base, last in stretches if last > base]
    if not stretches:
        raise NothingToProveError(_NOTHING)
    for base, last in stretches:
        proven = _attempt(trainer, checkpointer, base, last, snapshots)
        if proven:
            _tell(base, last, proven)
            return
    _tell_nothing(*stretches[0], most)


def _attempt(
    trainer: Trainer, checkpointer: Checkpointer, base: int, last: int, snapshots: Sequence[int]
) -> tuple[int, ...]:
    """Replay one stretch; the updates after which something could be compared."""
    within = [update for update in snapshots if base < update <= last]
    known = {}
    if within:
        _restore(trainer, checkpointer, within[0])
        known[within[0]] = state_digest(trainer)
    commit = _restore(trainer, checkpointer, base)
    recovery = checkpointer.recovery(commit)
    try:
        done = step_through(trainer, recovery, last, known=known)
    except ReplayError as error:
        raise ProofError(f"from the snapshot of update {base}: {error}. {_ADVICE}") from error
    _check_reached(done, base, last)
    return done.proven


def _restore(trainer: Trainer, checkpointer: Checkpointer, update: int) -> Commit:
    restored, commit = read(checkpointer, update, trainer.strategy.wanted(trainer.model))
    put_back(trainer, restored)
    return commit


def _check_reached(done: Replayed, base: int, last: int) -> None:
    if done.update < last:
        raise ProofError(
            f"from the snapshot of update {base}: the journal is damaged after update {done.update} and was to lead to "
            f"update {last}. {_ADVICE}"
        )


def _tell(base: int, last: int, proven: Sequence[int]) -> None:
    compared = ", ".join(map(str, proven))
    log.info(
        "proven: updates %d to %d, done again from the snapshot of update %d, lead to the same bits (compared after "
        "update %s)",
        base + 1,
        proven[-1],
        base,
        compared,
    )
    if last > proven[-1]:
        log.info("not proven: updates %d to %d, which no digest follows yet", proven[-1] + 1, last)


def _tell_nothing(base: int, last: int, most: int) -> None:
    log.warning(
        "nothing is proven: no digest was journalled and no snapshot saved in updates %d to %d%s",
        base + 1,
        last,
        f"; --prove {2 * most} may reach one" if last - base == most else "",
    )


_NOTHING = (
    "--prove replays the journal, and this run has none after any of its snapshots: checkpoint.journal was null, or "
    "codecs carried over what they lost (checkpoint.recovery=exact). Resume without --prove: snapshots are verified "
    "whenever they are read"
)
_ADVICE = (
    "Nothing was changed. Look for another version of torch or another device than before; `gradwire checkpoint fsck` "
    "reads everything there is. Without --prove the run goes on, from the snapshot where the journal leads elsewhere"
)
