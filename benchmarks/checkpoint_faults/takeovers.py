"""Two writers at one place: who took over goes on, and who was taken over stops and harms nothing."""

from benchmarks.checkpoint_faults.contenders import Session
from benchmarks.checkpoint_faults.intruders import Intruder, When
from benchmarks.checkpoint_faults.oracle import SURVIVED, Verdict, failed, whole
from benchmarks.checkpoint_faults.places import Place
from gradwire.checkpoint import CheckpointError, WriterFenced


def two_writers(place: Place, when: When) -> tuple[str, Verdict] | None:
    """A second writer restores and saves while the first is saving; the first must stop, and harm nothing."""

    def act() -> None:
        other = place.process()
        other.restore()
        others.append(other)
        for update in (10, 11):
            other.save(update)

    others: list[Session] = []
    intruder = Intruder(when, act)
    first = place.process(intruder)
    for update in (1, 2, 3):
        first.save(update)
    intruder.let_loose()
    return both(place, intruder, first, others, (4, 5), 11)


def zombie(place: Place, when: When) -> tuple[str, Verdict] | None:
    """A writer that was taken over goes on saving, while the other one saves too."""

    def act() -> None:
        for update in (12, 13):
            other.save(update)

    intruder = Intruder(when, act)
    first = place.process(intruder)
    for update in (1, 2, 3):
        first.save(update)
    other = place.process()
    other.restore()
    for update in (10, 11):
        other.save(update)
    intruder.let_loose()
    return both(place, intruder, first, [other], (4, 5), 13)


def zombie_journals(place: Place, when: When) -> tuple[str, Verdict] | None:
    """A writer that was taken over goes on journalling: nothing of that counts."""

    def act() -> None:
        other = place.process()
        found = other.restore() or 0
        other.save(found + 2)
        other.end()
        last.append(found + 2)

    last: list[int] = []
    intruder = Intruder(when, act)
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


def both(
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
    if verdict := stopped(first, zombies):
        return verdict
    verdict = whole(place.process(), newest, "after the zombie's save")
    if verdict.outcome != "survived":
        return verdict
    try:
        other.save(newest + 1)
    except Exception as error:
        return failed("the new writer's next save", other, error)
    verdict = whole(place.process(), newest + 1, "at the end")
    return verdict if verdict.outcome != "survived" else SURVIVED


def stopped(writer: Session, update: int) -> Verdict | None:
    """What is wrong with a save of a writer that was taken over; None where it is told so."""
    try:
        writer.save(update)
    except WriterFenced:
        return None
    except Exception as error:
        return Verdict("lost", f"the zombie was not told that it is one: {type(error).__name__}: {error}")
    return Verdict("lost", f"the zombie could still save update {update}")
