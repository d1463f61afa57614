"""Getting snapshots from the nearest tier to the last one, and answering for what fails on the way."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from gradwire.checkpoint import errors
from gradwire.checkpoint.commit import Commit, parse_commit
from gradwire.checkpoint.errors import CheckpointError, CheckpointWriteError, DamagedCheckpoint, WriterFenced
from gradwire.checkpoint.hop import Hop
from gradwire.checkpoint.policy import Policy, Standing
from gradwire.checkpoint.ranks import Ranks, raising

log = logging.getLogger(__name__)
_SLICE = 20.0  # seconds that ranks wait for the first one before they hear of it again
_PAUSES = (0.2, 1.0, 5.0, 20.0)  # seconds before what failed is tried again while the run waits for it


class Mirror:
    """The hops from tier to tier, for all ranks of a group; the first one copies.

    Args:
        hops: From each tier to the next; on all ranks, and none where there is one tier.
        ranks: Who is told.
        policy: What becomes of a run when a hop fails.
        damaged: Called on every rank where what was to be copied is damaged: what follows must not rely on it.
    """

    def __init__(
        self, hops: Sequence[Hop], ranks: Ranks, policy: Policy, damaged: Callable[[], None] = lambda: None
    ) -> None:
        self._hops = hops
        self._ranks = ranks
        self._policy = policy
        self._damaged = damaged
        self.standing = Standing()
        self.arrived: Commit | None = None  # the newest in the last tier, as of the last exchange

    def answer(self, *, quiet: bool = False) -> None:
        """Tell every rank what came of the attempts since the last time, and answer for it as the policy says.

        Args:
            quiet: A failure is only logged.

        Raises:
            CheckpointWriteError: a hop failed, and the run does not go on.
            WriterFenced: another writer has taken a tier over.
        """
        failure = self._exchange() if self._hops else None
        if failure is None:
            return
        if not quiet and not self._goes_on(failure):
            raise failure
        if self._ranks.rank == 0:
            log.warning("%s", failure)

    def finish(self, *, patient: bool = False) -> None:
        """Wait until everything has reached the last tier.

        Args:
            patient: Try again as often as the policy forgives a failure.

        Raises:
            CheckpointWriteError: something did not; it stays where it is.
            WriterFenced: another writer has taken a tier over.
        """
        if not self._hops:
            return
        attempts = self._policy.failures if patient and self._policy.on_failure == "warn" else 0
        self._again()
        self._settle()
        while (failure := self._exchange()) is not None:
            if attempts == 0 or not _is_forgivable(failure):
                raise failure
            if self._ranks.rank == 0:
                log.warning("%s; trying again", failure)
                time.sleep(_PAUSES[min(self._policy.failures - attempts, len(_PAUSES) - 1)])
            self._again()
            attempts -= 1
            self._settle()

    def settle(self) -> None:
        """Wait until nothing is being copied; what failed is logged."""
        if self._hops:
            self._settle()
            self.answer(quiet=True)

    def _again(self) -> None:
        for hop in self._hops:  # of other ranks they never copied anything
            hop.again()

    def _settle(self) -> None:
        while not raising(lambda: self._ranks.on_first(self._is_idle)):
            pass

    def _is_idle(self) -> bool:
        end = time.monotonic() + _SLICE
        return all(hop.wait(max(0.0, end - time.monotonic())) for hop in self._hops)

    def _goes_on(self, failure: CheckpointError) -> bool:
        return _is_forgivable(failure) and self._policy.goes_on(self.standing)

    def _exchange(self) -> CheckpointError | None:
        """Make every rank know what came of the attempts since the last time; the first failure."""
        told = raising(lambda: self._ranks.on_first(self._take))
        if told["arrived"] is not None:
            sequence, text = told["arrived"]
            self.arrived = parse_commit(text.encode("ascii"), sequence, "the commit just copied")
        if told["failure"] is None:
            self.standing = self.standing.after_success() if told["succeeded"] else self.standing
            return None
        failure = _error(*told["failure"])
        self.standing = self.standing.after_failure(full=isinstance(failure.__cause__, errors.StoreFull))
        if isinstance(failure.__cause__, DamagedCheckpoint):
            self._damaged()
        return failure

    def _take(self) -> dict[str, Any]:
        outcomes = [hop.take() for hop in self._hops]
        arrived = outcomes[-1].arrived
        failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
        return {
            "arrived": arrived and [arrived.sequence, arrived.to_bytes().decode("ascii")],
            "succeeded": any(outcome.arrived is not None for outcome in outcomes),
            "failure": _told(failures[0]) if failures else None,
        }


def _is_forgivable(failure: CheckpointError) -> bool:
    return isinstance(failure, CheckpointWriteError) and not isinstance(failure, WriterFenced)


def _told(failure: Exception) -> list[str]:
    cause = failure.__cause__ or failure
    return [type(failure).__name__, str(failure) or repr(failure), type(cause).__name__, str(cause)]


def _error(kind: str, message: str, cause: str, reason: str) -> CheckpointError:
    """A failure of the first rank as an error, on every rank; one that nobody foresaw is never forgiven."""
    error: CheckpointError = getattr(errors, kind, CheckpointError)(message)
    error.__cause__ = getattr(errors, cause, CheckpointError)(reason)
    return error
