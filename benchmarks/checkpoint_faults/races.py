"""Two processes at one place: at every operation of one, the other does all that it has to do."""

import errno
import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.checkpoint_faults.contenders import Session
from benchmarks.checkpoint_faults.oracle import SURVIVED, Verdict, failed, restored, whole
from benchmarks.checkpoint_faults.places import Place
from benchmarks.checkpoint_faults.tally import Tally
from gradwire.checkpoint import CheckpointError, WriterFenced

MakePlace = Callable[[], Place]


class Intruder:
    """Acts once, before the `number`-th operation of the other process after it was let loose.

    Args:
        number: When.
        act: What it does.
        keeping: Whether the other process cannot remove parts and packs before it was let loose.
    """

    def __init__(self, number: int, act: Callable[[], None], *, keeping: bool = False) -> None:
        self._left = number
        self._act = act
        self._keeping = keeping
        self._loose = False
        self.at: str | None = None
        self.failure: Exception | None = None

    def let_loose(self) -> None:
        self._loose = True

    def __call__(self, _: int, operation: Any) -> None:
        if self._keeping and not self._loose:
            _refuse_removal(operation)
        if not self._loose or self.at is not None:
            return
        if self._left == 0:
            self.at = f"{operation.kind} {operation.path}"
            try:
                self._act()
            except Exception as error:
                self.failure = error
        self._left -= 1


def _refuse_removal(operation: Any) -> None:
    folder, _, name = operation.path.rpartition("/")
    if operation.kind in ("unlink", "delete") and folder.endswith(("packs", "parts")) and not name.startswith("."):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@dataclass(frozen=True)
class Race:
    """One kind of race.

    Args:
        name: For the table.
        run: Runs it with the intruder at a number; where it acted and what came of it, None where it did not.
    """

    name: str
    run: Callable[[Place, int], tuple[str, Verdict] | None]


def race_everywhere(
    name: str, make: MakePlace, tally: Tally, every: int = 1, races: "tuple[Race, ...] | None" = None
) -> None:
    """Races (all that need no journal, where None), with the intruder at every operation (or each `every`-th)."""
    for race in races or RACES:
        for number in itertools.count(0, every):
            found = race.run(make(), number)
            if found is None:
                break
            where, verdict = found
            tally.add(name, race.name, verdict, f"at operation {number} ({where})")


def two_writers(place: Place, number: int) -> tuple[str, Verdict] | None:
    """A second writer restores and saves while the first is saving; the first must stop, and harm nothing."""

    def act() -> None:
        other = place.process()
        other.restore()
        others.append(other)
        for update in (10, 11):
            other.save(update)

    others: list[Session] = []
    intruder = Intruder(number, act)
    first = place.process(intruder)
    for update in (1, 2, 3):
        first.save(update)
    intruder.let_loose()
    return _both(place, intruder, first, others, (4, 5), 11)


def zombie(place: Place, number: int) -> tuple[str, Verdict] | None:
    """A writer that was taken over goes on saving, while the other one saves too."""

    def act() -> None:
        for update in (12, 13):
            other.save(update)

    intruder = Intruder(number, act)
    first = place.process(intruder)
    for update in (1, 2, 3):
        first.save(update)
    other = place.process()
    other.restore()
    for update in (10, 11):
        other.save(update)
    intruder.let_loose()
    return _both(place, intruder, first, [other], (4, 5), 13)


def prune_against_rollback(place: Place, number: int) -> tuple[str, Verdict] | None:
    """While one saves and prunes, another goes back to the snapshot that is being removed, and saves on from it."""

    def act() -> None:
        other = place.process()
        try:
            other.restore_update(4)
            updates = (6, 8)  # much of it is what the snapshot of update 4 has in the store already
        except CheckpointError:
            other.restore()
            updates = (10, 12)
        others.append(other)
        for update in updates:
            other.save(update)
        last.append(updates[-1])

    others: list[Session] = []
    last: list[int] = []
    intruder = Intruder(number, act)
    first = place.process(intruder)
    for update in (1, 2, 3, 4, 5):
        first.save(update)
    intruder.let_loose()
    return _both(place, intruder, first, others, (6, 7), last)


def prune_against_return(place: Place, number: int) -> tuple[str, Verdict] | None:
    """A process has gone back to the snapshot that another one's pruning removes, and saves meanwhile."""

    def act() -> None:
        for update in (8, 10):
            other.save(update)

    intruder = Intruder(number, act)
    first = place.process(intruder)
    for update in (1, 2, 3, 4, 5):
        first.save(update)
    other = place.process()
    other.restore_update(4)
    intruder.let_loose()
    return _both(place, intruder, first, [other], (6, 7), 10)


def prune_against_leftovers(place: Place, number: int) -> tuple[str, Verdict] | None:
    """What a killed writer left is being removed while another writer saves the same content.

    All snapshots that they begin from are of odd updates, so that what is new in update 9 is the same after each.
    """

    def act() -> None:
        other = place.process()
        other.restore()
        others.append(other)
        for update in (9, 10):
            other.save(update)

    others: list[Session] = []
    place.process().save(1)
    killed = place.process(_Killer())
    killed.restore()
    with suppress(_Killed):
        killed.save(9)
    intruder = Intruder(number, act, keeping=True)
    first = place.process(intruder)
    first.restore()
    first.save(3)
    intruder.let_loose()
    return _both(place, intruder, first, others, (5, 7), 10)


def zombie_journals(place: Place, number: int) -> tuple[str, Verdict] | None:
    """A writer that was taken over goes on journalling: nothing of that counts."""

    def act() -> None:
        other = place.process()
        found = other.restore() or 0
        other.save(found + 2)
        other.end()
        last.append(found + 2)

    last: list[int] = []
    intruder = Intruder(number, act)
    first = place.process(intruder)
    try:
        first.save(5)
        intruder.let_loose()
        _ignoring(first, 8)
        if intruder.at is None:
            return None
        _ignoring(first, 30)
    finally:
        first.end()
    if intruder.failure:
        return intruder.at, failed("the other writer", first, intruder.failure)
    return intruder.at, whole(place.process(), last[0], "after the race")


def _ignoring(session: Session, update: int) -> None:
    try:
        session.save(update)
    except CheckpointError:
        return


class _Killed(BaseException):
    """Nothing catches it."""


class _Killer:
    """Kills a process for good before the commit of the snapshot whose part it has written."""

    def __init__(self) -> None:
        self._part = False
        self._dead = False

    def __call__(self, _: int, operation: Any) -> None:
        path = operation.path + getattr(operation, "target", "")
        if operation.kind in ("link", "put"):
            self._dead |= self._part and "commits/" in path
            self._part |= "parts/" in path
        if self._dead:
            raise _Killed


def prune_against_restore(place: Place, number: int) -> tuple[str, Verdict] | None:
    """A writer saves and prunes while another process restores."""

    def act() -> None:
        for update in (4, 5, 6):
            writer.save(update)

    writer = place.process()
    for update in (1, 2, 3):
        writer.save(update)
    intruder = Intruder(number, act)
    reader = place.process(intruder)
    intruder.let_loose()
    verdict = restored(reader, 3, 6)
    if intruder.at is None:
        return None
    if intruder.failure:
        return intruder.at, failed("the writer", writer, intruder.failure)
    if verdict.outcome == "survived":
        verdict = whole(place.process(), 6, "after the race")
    return intruder.at, verdict


def _both(
    place: Place,
    intruder: Intruder,
    first: Session,
    others: list[Session],
    updates: tuple[int, int],
    last: int | list[int],
) -> tuple[str, Verdict] | None:
    """Let the first writer save while the intruder acts; then whoever took over must be whole and go on."""
    outcome: Exception | None = None
    try:
        first.save(updates[0])
    except Exception as error:
        outcome = error
    if intruder.at is None:
        return None
    if intruder.failure:
        return intruder.at, failed("the other writer", first, intruder.failure)
    if outcome is not None and not first.expects(outcome):
        return intruder.at, failed("the first writer's save", first, outcome)
    newest = last[-1] if isinstance(last, list) else last
    verdict = whole(place.process(), newest, "after the race")
    if verdict.outcome == "survived":
        verdict = _goes_on(place, first, others[-1], updates[1], newest)
    return intruder.at, verdict


def _goes_on(place: Place, first: Session, other: Session, zombies: int, newest: int) -> Verdict:
    try:
        first.save(zombies)
    except WriterFenced:
        pass
    except Exception as error:
        return Verdict("lost", f"the zombie was not told that it is one: {type(error).__name__}: {error}")
    else:
        return Verdict("lost", f"the zombie could still save update {zombies}")
    verdict = whole(place.process(), newest, "after the zombie's save")
    if verdict.outcome != "survived":
        return verdict
    try:
        other.save(newest + 1)
    except Exception as error:
        return failed("the new writer's next save", other, error)
    verdict = whole(place.process(), newest + 1, "at the end")
    return verdict if verdict.outcome != "survived" else SURVIVED


RACES = (
    Race("two writers", two_writers),
    Race("zombie after fencing", zombie),
    Race("prune racing a rollback", prune_against_rollback),
    Race("prune racing a save on what it removes", prune_against_return),
    Race("prune racing a save of what it removes", prune_against_leftovers),
    Race("prune racing restore", prune_against_restore),
)
JOURNAL_RACES = (Race("zombie that journals", zombie_journals), Race("prune racing restore", prune_against_restore))
