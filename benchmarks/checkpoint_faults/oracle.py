"""What must hold after a fault, whatever it was."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.checkpoint_faults.contenders import Altered, Session
from benchmarks.checkpoint_faults.places import Moment, Place

Outcome = Literal["survived", "refused", "lost"]


@dataclass(frozen=True)
class Verdict:
    """What came of a fault.

    Args:
        outcome: `survived`: the state came back bit by bit, not older than the last one that counted as saved, all that
            is stored is whole, and the next save worked and outlived a power cut. `refused`: an error said that it
            cannot be restored (or that the next save failed). `lost`: anything else.
        why: What was seen.
    """

    outcome: Outcome
    why: str = ""


SURVIVED = Verdict("survived")


@dataclass(frozen=True)
class Judgment:
    """What came of a fault, and what came of saving on.

    Args:
        now: Of the fault.
        later: Of a power cut right after the next save, which loses all it can; None where it did not come to that.
    """

    now: Verdict
    later: Verdict | None = None


def judge(place: Place, known: Moment) -> Judgment:
    """Restore, verify and save again at a place as a fault left it.

    Args:
        place: Where; not changed.
        known: What had been saved.
    """
    place = place.copy()
    session = place.process()
    try:
        return _judge(place, session, known)
    finally:
        session.end()


def _judge(place: Place, session: Session, known: Moment) -> Judgment:
    verdict = restored(session, known.acknowledged, known.attempted)
    if verdict.outcome != "survived":
        return Judgment(verdict)
    if problems := session.verify():
        return Judgment(Verdict("lost", f"damage: {problems[0]}"))
    update = known.attempted + 1
    try:
        session.save(update)
    except Exception as error:
        return Judgment(failed(f"the next save, of update {update},", session, error))
    return Judgment(
        whole(place.process(), update, "after the next save"),
        whole(place.after_power_cut().process(), update, "after it and a power cut"),
    )


def whole(session: Session, update: int, when: str) -> Verdict:
    """Whether exactly this update comes back and all that is stored is whole."""
    verdict = restored(session, update, update)
    if verdict.outcome != "survived":
        return Verdict(verdict.outcome, f"{when}: {verdict.why}")
    if problems := session.verify():
        return Verdict("lost", f"damage {when}: {problems[0]}")
    return SURVIVED


def restored(session: Session, oldest: int, newest: int) -> Verdict:
    """Whether what comes back is one of the updates that may."""
    try:
        found = session.restore()
    except Altered as error:
        return Verdict("lost", f"altered: {error}")
    except Exception as error:
        return failed("restore", session, error)
    if not oldest <= (found or 0) <= newest:
        return Verdict("lost", f"update {oldest} counted as saved, and {found} was restored")
    return SURVIVED


def failed(what: str, session: Session, error: Exception) -> Verdict:
    return Verdict(
        "refused" if session.expects(error) else "lost", f"{what} failed: {type(error).__name__}: {str(error)[:300]}"
    )
