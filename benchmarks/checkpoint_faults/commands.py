"""`gradwire checkpoint prune` and `fsck --repair`: beside a writer, beside a reader, and killed."""

from collections.abc import Callable

from benchmarks.checkpoint_faults.gradwire_sessions import GradwireSession
from benchmarks.checkpoint_faults.intruders import Intruder, Killed, Killer, When, dying
from benchmarks.checkpoint_faults.oracle import Verdict, failed, judge, restored, whole
from benchmarks.checkpoint_faults.places import Moment, Place
from benchmarks.checkpoint_faults.takeovers import stopped
from gradwire.checkpoint import CheckpointError, CheckpointWriteError, NoCheckpoint, WriterFenced

Command = Callable[[GradwireSession], None]
Found = tuple[str, Verdict] | None


def prune_beside_save(place: Place, when: When) -> Found:
    """While a writer saves, somebody prunes all but the newest snapshot: the writer takes no notice."""
    _leave_behind(place)
    intruder = Intruder(when, lambda: place.process().prune())
    writer = _writer(place, intruder)
    intruder.let_loose()
    return _goes_on(place, intruder, writer)


def save_beside_prune(place: Place, when: When) -> Found:
    """While somebody prunes, the writer saves."""
    _leave_behind(place)
    writer = _writer(place)

    def act() -> None:
        for update in (4, 5):
            writer.save(update)

    intruder = Intruder(when, act)
    other = place.process(intruder)
    intruder.let_loose()
    try:
        other.prune()
    except Exception as error:
        return when.at and (when.at, failed("the clean-up", other, error))
    if when.at is None:
        return None
    if intruder.failure:
        return when.at, failed("the writer's save", writer, intruder.failure)
    return when.at, whole(place.process(), 5, "after the clean-up")


def prune_beside_restore(place: Place, when: When) -> Found:
    """While a snapshot is restored, somebody prunes it: it comes back bit by bit, or an error says that it is gone."""
    _writer(place)
    intruder = Intruder(when, lambda: place.process().prune())
    reader = place.process(intruder)
    intruder.let_loose()
    try:
        reader.restore_update(2)
    except NoCheckpoint:
        if when.at is None:
            raise
    except Exception as error:
        return when.at and (when.at, failed("restoring what was pruned", reader, error))
    if when.at is None:
        return None
    if intruder.failure:
        return when.at, failed("the clean-up", reader, intruder.failure)
    return when.at, whole(place.process(), 3, "after the clean-up")


def repair_beside_save(place: Place, when: When) -> Found:
    """While a writer saves, somebody repairs the store, whose older snapshot is damaged: the writer stops."""
    _leave_behind(place)
    intruder = Intruder(when, lambda: place.process().repair())
    writer = _writer(place, intruder)
    writer.lose(2)
    intruder.let_loose()
    newest = 4
    try:
        writer.save(4)
    except CheckpointWriteError:
        newest = 3
    except Exception as error:
        return when.at and (when.at, failed("the writer's save", writer, error))
    if when.at is None:
        return None
    if intruder.failure:
        return when.at, failed("the repair", writer, intruder.failure)
    verdict = stopped(writer, 5)
    return when.at, verdict or judge(place, Moment(0, newest, 5)).now


def save_beside_repair(place: Place, when: When) -> Found:
    """While somebody repairs the store, the writer saves: what it is told is saved stays."""
    _leave_behind(place)
    writer = _writer(place)
    writer.lose(2)
    saved = [3]

    def act() -> None:
        try:
            writer.save(4)
        except CheckpointWriteError:
            return
        saved.append(4)

    intruder = Intruder(when, act)
    other = place.process(intruder)
    intruder.let_loose()
    try:
        other.repair()
    except WriterFenced:
        other.repair()  # it was refused because of the save, and nothing was removed
    except Exception as error:
        return when.at and (when.at, failed("the repair", other, error))
    if when.at is None:
        return None
    if intruder.failure:
        return when.at, failed("the writer's save", writer, intruder.failure)
    return when.at, judge(place, Moment(0, saved[-1], 4)).now


def killed_pruning(place: Place, when: When) -> Found:
    """Somebody who prunes is killed."""
    _leave_behind(place)
    _writer(place)
    _kill(place, when, GradwireSession.prune)
    return when.at and (when.at, judge(place, Moment(0, 3, 3)).now)


def killed_repairing(place: Place, when: When) -> Found:
    """Somebody who repairs is killed. The newest snapshot is whole all the same, and another repair ends it."""
    _leave_behind(place)
    _writer(place).lose(2)
    _kill(place, when, GradwireSession.repair)
    if when.at is None:
        return None
    verdict = restored(place.process(), 3, 3)
    if verdict.outcome == "survived":
        place.process().repair()
        verdict = judge(place, Moment(0, 3, 3)).now
    return when.at, verdict


def _kill(place: Place, when: When, command: Command) -> None:
    def hook(_: int, operation: object) -> None:
        if when.has_come(operation) or when.at is not None:
            raise Killed

    other = place.process(hook)
    when.let_loose()
    with dying():
        command(other)


def _leave_behind(place: Place) -> None:
    """What a killed writer leaves."""
    place.process().save(1)
    killed = place.process(Killer())
    killed.restore()
    with dying():
        killed.save(9)


def _writer(place: Place, intruder: Intruder | None = None) -> GradwireSession:
    """A writer that has saved the updates 2 and 3."""
    writer = place.process(intruder)
    writer.restore()
    for update in (2, 3):
        writer.save(update)
    return writer


def _goes_on(place: Place, intruder: Intruder, writer: GradwireSession) -> Found:
    """The writer's saves work, whatever the intruder does meanwhile."""
    for update in (4, 5):
        try:
            writer.save(update)
        except CheckpointError as error:
            return intruder.at and (intruder.at, failed(f"the save of update {update}", writer, error))
        if intruder.at is None:
            return None
        if intruder.failure:
            return intruder.at, failed("the clean-up", writer, intruder.failure)
        verdict = whole(place.process(), update, "after the save")
        if verdict.outcome != "survived":
            break
    return intruder.at, verdict
