"""Saving together: packs, then parts, then the commit; all ranks succeed or none does."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.checkpoint import tree
from gradwire.checkpoint.commit import LONGEST_COMMIT, Commit, Reason, parse_entry
from gradwire.checkpoint.epochs import CommitWriter, Draft
from gradwire.checkpoint.errors import CheckpointError, CheckpointWriteError, StoreFull, UnsupportedState, WriterFenced
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.ranks import Ranks, RanksFailed
from gradwire.checkpoint.restoring import recall
from gradwire.checkpoint.retention import Pruner
from gradwire.checkpoint.shares import share_out
from gradwire.checkpoint.snapshot import PartRef, PartWriter
from gradwire.checkpoint.state import State
from gradwire.checkpoint.store import Store

log = logging.getLogger(__name__)


class Saver:
    """Saves snapshots, with all ranks of a group.

    Args:
        store: Where they go.
        ranks: Who saves.
        writer: Commits them, on rank 0.
        pruner: Removes old ones, on rank 0.
    """

    def __init__(self, store: Store, ranks: Ranks, writer: CommitWriter, pruner: Pruner) -> None:
        self._store = store
        self._ranks = ranks
        self._writer = writer
        self._pruner = pruner
        self._known = Known()

    def save(
        self, state: State, clock: Mapping[str, int | float], metrics: Mapping[str, float], reason: Reason
    ) -> Commit:
        """Save one snapshot; arguments and errors as in Checkpointer.save."""
        part = PartWriter(self._store, self._ranks.rank, self._known)
        try:
            self._ranks.on_first(lambda: self._begin(clock, metrics))
            owners = share_out(self._ranks, state.shared)
            answers = self._ranks.together(lambda: self._write(part, state, owners))
        except RanksFailed as error:
            self._abandon(part)
            raise _write_error(error, self._store.url) from error.__cause__
        try:
            commit = self._publish(answers, clock, metrics, reason)
        except RanksFailed as error:
            if error.failures[0].kind == StoreFull.__name__:  # anything else may yet turn out to be a commit
                self._abandon(part)
            raise _write_error(error, self._store.url) from error.__cause__
        part.committed()
        if self._ranks.rank == 0:
            self._prune(commit)
        return commit

    def continue_from(self, commit: Commit) -> None:
        """Do not write again what the restored snapshot has already."""
        recall(self._known, self._store, commit, self._ranks.rank, self._ranks.size)

    def _begin(self, clock: Mapping[str, int | float], metrics: Mapping[str, float]) -> None:
        _check_numbers("clock", clock)
        _check_numbers("metrics", metrics)
        if not isinstance(clock.get("updates"), int) or clock["updates"] < 0:
            raise UnsupportedState("clock must count 'updates', a whole number of at least 0: {'updates': 100, …}")
        self._writer.claim()

    def _write(self, part: PartWriter, state: State, owners: Sequence[int] | None) -> dict[str, Any]:
        for name, tree_ in (("shared", state.shared), ("local", state.local)):
            if not isinstance(tree_, Mapping):
                raise UnsupportedState(
                    f"{name} is a {type(tree_).__name__}; a state is a dict with names for its parts"
                )
        ref = part.write(state.shared, state.local, owners)
        return {"part": [ref.digest, ref.size], "shared": list(state.shared), "local": list(state.local)}

    def _publish(
        self,
        answers: list[dict[str, Any]],
        clock: Mapping[str, int | float],
        metrics: Mapping[str, float],
        reason: Reason,
    ) -> Commit:
        draft = Draft(
            reason=reason,
            clock=dict(clock),
            metrics=dict(metrics),
            world_size=self._ranks.size,
            captured={
                "shared": tuple(map(str, answers[0]["shared"])),
                "local": tuple(dict.fromkeys(str(name) for answer in answers for name in answer["local"])),
            },
            parts=tuple(PartRef(rank, *answer["part"]) for rank, answer in enumerate(answers)),
        )

        def publish() -> tuple[int, str]:
            commit = self._writer.publish(draft)
            return commit.sequence, commit.to_bytes().decode("ascii")

        sequence, text = self._ranks.on_first(publish)
        return _parsed(text, sequence)

    def _abandon(self, part: PartWriter) -> None:
        """Free what the failed snapshot took, if no commit (of ours or of a writer that took over) can be using it."""
        try:
            if self._ranks.on_first(self._writer.holds):
                self._ranks.together(part.discard)
        except (RanksFailed, CheckpointError) as error:
            log.warning("%s: what the failed snapshot left behind stays for now: %s", self._store.url, error)

    def _prune(self, commit: Commit) -> None:
        try:
            self._pruner.prune(commit.sequence)
        except CheckpointError as error:
            log.warning("update %d was saved, but old snapshots were not removed: %s", commit.update, error)


def _check_numbers(name: str, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedState(f"{name} must map names to numbers, found {key!r}: {value!r}")
        tree.encode_scalar(value, f"{name}.{key}")


def _parsed(text: str, sequence: int) -> Commit:
    entry = parse_entry(text.encode("ascii")[: LONGEST_COMMIT + 1], sequence, "the commit just written")
    if not isinstance(entry, Commit):
        raise CheckpointWriteError("rank 0 sent something else than the commit")
    return entry


def _write_error(error: RanksFailed, url: str) -> CheckpointWriteError:
    kind = WriterFenced if error.failures[0].kind == WriterFenced.__name__ else CheckpointWriteError
    return kind(f"{url}: no snapshot was committed, the last commit stays. {error}")
