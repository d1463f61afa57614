"""Saving together: packs, then parts, then the commit; all ranks succeed or none does."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradwire.checkpoint import errors, tree
from gradwire.checkpoint.cleaning import Cleaner
from gradwire.checkpoint.commit import Commit, Reason, parse_commit
from gradwire.checkpoint.epochs import Draft
from gradwire.checkpoint.errors import CheckpointError, CheckpointWriteError, StoreFull, UnsupportedState, WriterFenced
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.packs import worth_for
from gradwire.checkpoint.ranks import Failure, Ranks, RanksFailed
from gradwire.checkpoint.restoring import recall
from gradwire.checkpoint.shares import share_out
from gradwire.checkpoint.snapshot import PartRef, PartWriter
from gradwire.checkpoint.space import Demand, check, demand
from gradwire.checkpoint.staging import bytes_of, slices_of
from gradwire.checkpoint.state import State
from gradwire.checkpoint.store import Store

if TYPE_CHECKING:
    from gradwire.checkpoint.tiers import Tiers

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What a snapshot is to say beside the state; fields as Checkpointer.save describes them."""

    clock: Mapping[str, int | float]
    metrics: Mapping[str, float]
    reason: Reason


class Saver:
    """Saves snapshots, with all ranks of a group; one at a time.

    Args:
        store: Where they go.
        writer: Commits them, on rank 0.
        cleaner: Removes old ones, on rank 0.
    """

    def __init__(self, store: Store, writer: "Tiers", cleaner: Cleaner) -> None:
        self._store = store
        self._writer = writer
        self._cleaner = cleaner
        self._known = Known()
        self._written_per_byte: float | None = 1.0  # of the last snapshot; None after a restore, until the first one
        self._warned: set[str] = set()

    def save(self, ranks: Ranks, source: Callable[[], State], request: Request) -> Commit:
        """Save one snapshot; errors as in Checkpointer.save.

        Args:
            ranks: Who saves.
            source: Returns the state, which nobody changes meanwhile; what it raises fails the snapshot on all ranks.
            request: What else is said.
        """
        part = PartWriter(self._store, ranks.rank, self._known, worth_for(self._writer.stores))
        try:
            state, nbytes = self._begin(ranks, source, request)
            owners = share_out(ranks, state.shared)
            answers = ranks.together(lambda: self._write(part, state, owners))
        except RanksFailed as error:
            self._abandon(ranks, part)
            raise _write_error(error, self._store.url) from _cause(error)
        try:
            commit = self._publish(ranks, answers, request)
        except RanksFailed as error:
            if error.failures[0].kind == StoreFull.__name__:  # anything else may yet turn out to be a commit
                self._abandon(ranks, part)
            raise _write_error(error, self._store.url) from _cause(error)
        part.committed()
        self._written_per_byte = sum(answer["written"] for answer in answers) / max(nbytes, 1)
        if ranks.rank == 0:
            self._warn_of_gaps(commit)
        return commit

    def prune(self, ranks: Ranks, commit: Commit) -> None:
        """Remove old snapshots, after the newest commit; failures are logged."""
        if ranks.rank == 0:
            self._cleaner.clean(commit)

    def check_room(self, ranks: Ranks, state: State, copies: int = 1) -> None:
        """Look for room for a state, or for several like it, before anything is done for it.

        Raises:
            CheckpointWriteError: there is none; its cause is StoreFull.
            CheckpointError: a rank no longer answers.
        """
        try:
            self._find_room(ranks.together(lambda: self._demand(ranks, state)), copies)
        except RanksFailed as error:
            raise _write_error(error, self._store.url) from _cause(error)

    def continue_from(self, ranks: Ranks, commit: Commit) -> None:
        """Do not write again what the restored snapshot has already."""
        recall(self._known, self._store, commit, ranks.rank, ranks.size)
        self._written_per_byte = None

    def begin_anew(self) -> None:
        """Write the next snapshot as a whole: the store does not have what was restored, or has it damaged."""
        self._known.replace([])
        self._written_per_byte = 1.0

    def _begin(self, ranks: Ranks, source: Callable[[], State], request: Request) -> tuple[State, int]:
        """The state, and its bytes on all ranks, once it is known to be of the right kind and to have room."""
        states: list[State] = []

        def begin() -> dict[str, Any]:
            claims: list[Any] = []
            if ranks.rank == 0:
                _check_request(request)
                claims = self._writer.claim()
            states.append(_checked(source()))
            left_behind = ranks.rank == 0 and self._writer.left_behind
            return {**self._demand(ranks, states[0]), "left behind": left_behind, "claims": claims}

        answers = ranks.together(begin)
        self._writer.show(ranks, answers[0]["claims"])
        if answers[0]["left behind"]:
            self._known.replace([])  # nothing that an earlier writer may be removing is relied on
        self._find_room(answers)
        return states[0], sum(answer["bytes"] for answer in answers)

    def _demand(self, ranks: Ranks, state: State) -> dict[str, Any]:
        nbytes = bytes_of(state.local) + bytes_of(state.shared if ranks.rank == 0 else slices_of(state.shared))
        asked = demand(self._store.url, nbytes)
        return {"bytes": nbytes, "demand": asked and asked.to_json()}

    def _find_room(self, answers: list[dict[str, Any]], copies: int = 1) -> None:
        """Raise RanksFailed, on every rank, where the snapshot does not fit if it shrinks as much as the last one."""
        if self._written_per_byte is None:
            return
        found = [Demand(**answer["demand"]) for answer in answers if answer["demand"] is not None]
        try:
            check(self._store.url, [each.times(self._written_per_byte * copies) for each in found])
        except StoreFull as error:
            raise RanksFailed([Failure(0, type(error).__name__, str(error))]) from error

    def _write(self, part: PartWriter, state: State, owners: Sequence[int] | None) -> dict[str, Any]:
        ref = part.write(state.shared, state.local, owners)
        return {
            "part": [ref.digest, ref.size],
            "written": part.written,
            "shared": list(state.shared),
            "local": list(state.local),
            "not_captured": list(state.not_captured),
        }

    def _publish(self, ranks: Ranks, answers: list[dict[str, Any]], request: Request) -> Commit:
        draft = Draft(
            reason=request.reason,
            clock=dict(request.clock),
            metrics=dict(request.metrics),
            world_size=ranks.size,
            captured={"shared": _names(answers[:1], "shared"), "local": _names(answers, "local")},
            parts=tuple(PartRef(rank, *answer["part"]) for rank, answer in enumerate(answers)),
            not_captured=_names(answers, "not_captured"),
        )

        def publish() -> tuple[int, str]:
            commit = self._writer.publish(draft)
            return commit.sequence, commit.to_bytes().decode("ascii")

        sequence, text = ranks.on_first(publish)
        return parse_commit(text.encode("ascii"), sequence, "the commit just written")

    def _abandon(self, ranks: Ranks, part: PartWriter) -> None:
        """Free what the failed snapshot took, if no commit (of ours or of a writer that took over) can be using it."""
        try:
            if ranks.on_first(self._writer.holds):
                ranks.together(part.discard)
        except (RanksFailed, CheckpointError) as error:
            log.warning("%s: what the failed snapshot left behind stays for now: %s", self._store.url, error)

    def _warn_of_gaps(self, commit: Commit) -> None:
        new = [name for name in commit.not_captured if name not in self._warned]
        self._warned.update(new)
        if new:
            log.warning(
                "%s: has state that is not captured, which a resumed run begins anew: %s",
                self._store.url,
                ", ".join(new),
            )


def _check_request(request: Request) -> None:
    _check_numbers("clock", request.clock)
    _check_numbers("metrics", request.metrics)
    updates = request.clock.get("updates")
    if not isinstance(updates, int) or updates < 0:
        raise UnsupportedState("clock must count 'updates', a whole number of at least 0: {'updates': 100, …}")


def _check_numbers(name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedState(f"{name} must map names to numbers, found {key!r}: {value!r}")
        tree.encode_scalar(value, f"{name}.{key}")


def _checked(state: State) -> State:
    for name, tree_ in (("shared", state.shared), ("local", state.local)):
        if not isinstance(tree_, Mapping):
            raise UnsupportedState(f"{name} is a {type(tree_).__name__}; a state is a dict with names for its parts")
    return state


def _names(answers: list[dict[str, Any]], kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(name) for answer in answers for name in answer[kind]))


def _write_error(error: RanksFailed, url: str) -> CheckpointWriteError:
    kind = WriterFenced if error.failures[0].kind == WriterFenced.__name__ else CheckpointWriteError
    return kind(f"{url}: no snapshot was committed, the last commit stays. {error}")


def _cause(error: RanksFailed) -> BaseException:
    """The first failure as an error of its class, on the rank where it happened and on all others."""
    first = error.failures[0]
    own = error.__cause__
    return (
        own
        if own is not None and type(own).__name__ == first.kind
        else getattr(errors, first.kind, CheckpointError)(first.reason)
    )
