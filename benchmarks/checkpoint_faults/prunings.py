"""A writer's clean-up beside another process."""

from benchmarks.checkpoint_faults.contenders import Session
from benchmarks.checkpoint_faults.intruders import Intruder, Killer, When, dying
from benchmarks.checkpoint_faults.oracle import Verdict, failed, restored, whole
from benchmarks.checkpoint_faults.places import Place
from benchmarks.checkpoint_faults.takeovers import both
from gradwire.checkpoint import CheckpointError


def prune_against_rollback(place: Place, when: When) -> tuple[str, Verdict] | None:
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
    intruder = Intruder(when, act)
    first = place.process(intruder)
    for update in (1, 2, 3, 4, 5):
        first.save(update)
    intruder.let_loose()
    return both(place, intruder, first, others, (6, 7), last)


def prune_against_return(place: Place, when: When) -> tuple[str, Verdict] | None:
    """A process has gone back to the snapshot that another one's pruning removes, and saves meanwhile."""

    def act() -> None:
        for update in (8, 10):
            other.save(update)

    intruder = Intruder(when, act)
    first = place.process(intruder)
    for update in (1, 2, 3, 4, 5):
        first.save(update)
    other = place.process()
    other.restore_update(4)
    intruder.let_loose()
    return both(place, intruder, first, [other], (6, 7), 10)


def prune_against_leftovers(place: Place, when: When) -> tuple[str, Verdict] | None:
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
    killed = place.process(Killer())
    killed.restore()
    with dying():
        killed.save(9)
    intruder = Intruder(when, act, keeping=True)
    first = place.process(intruder)
    first.restore()
    first.save(3)
    intruder.let_loose()
    return both(place, intruder, first, others, (5, 7), 10)


def prune_against_restore(place: Place, when: When) -> tuple[str, Verdict] | None:
    """A writer saves and prunes while another process restores."""

    def act() -> None:
        for update in (4, 5, 6):
            writer.save(update)

    writer = place.process()
    for update in (1, 2, 3):
        writer.save(update)
    intruder = Intruder(when, act)
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
