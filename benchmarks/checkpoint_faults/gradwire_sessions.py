"""gradwire.checkpoint's sessions: a Checkpointer on a simulated place, through its public interface."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from benchmarks.checkpoint_faults.contenders import FOLDER, Altered, checked
from benchmarks.checkpoint_faults.disk import Disk
from benchmarks.checkpoint_faults.inline import without_pools
from benchmarks.checkpoint_faults.states import tensors_at
from gradwire.checkpoint import Checkpointer, CheckpointError, NoCheckpoint, State, fsck
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.local import LocalObjects
from gradwire.checkpoint.pruning import plan_prune
from gradwire.checkpoint.repair import repair
from gradwire.checkpoint.retention import Retention
from gradwire.checkpoint.store import Objects, Store

_NUMBERS = itertools.count()


class Places:
    """Stores by URL that are simulated: a way in below Store.open, and the only one that the harness takes."""

    def __init__(self) -> None:
        self._places: dict[str, Callable[[], Objects]] = {}
        self._open = Store.open

    def add(self, objects: Callable[[], Objects]) -> str:
        """The URL of a place, for as long as nobody forgets it."""
        url = f"memory://simulated-{next(_NUMBERS)}"
        self._places[url] = objects
        return url

    def forget(self, url: str) -> None:
        del self._places[url]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let URLs of simulated places be opened."""

        def opened(url: str, *rest: Any, **named: Any) -> Store:
            return Store(url, self._places[url]()) if url in self._places else self._open(url, *rest, **named)

        with mock.patch.object(Store, "open", opened), without_pools():
            yield


PLACES = Places()


class GradwireSession:
    """A process that saves and restores.

    Args:
        objects: Opens the place of the store's objects.
        keep_last: Snapshots kept.
    """

    name = "gradwire"

    def __init__(self, objects: Callable[[], Objects], keep_last: int = 2) -> None:
        self._url = PLACES.add(objects)
        with PLACES.installed():
            self.checkpointer = Checkpointer(self._url, keep_last=keep_last, keep_best=1)

    def save(self, update: int) -> None:
        with PLACES.installed():
            self._snapshot(update)

    def _snapshot(self, update: int) -> Commit:
        """In the background at every other update; that and its cleaning up are waited for."""
        what = state_at(update), {"updates": update}, {"eval/loss": 1 / (1 + update % 3)}
        if update % 2 == 0:
            return self.checkpointer.save(*what)
        saving = self.checkpointer.start(*what)
        try:
            return saving.wait()
        finally:
            self.checkpointer.close()

    def restore(self) -> int | None:
        with PLACES.installed():
            try:
                state, commit = self.checkpointer.restore()
            except NoCheckpoint:
                return None
        return checked_state(state, commit.update)

    def restore_update(self, update: int) -> None:
        """Go back to an update. Raises CheckpointError where it is not there."""
        with PLACES.installed():
            checked_state(self.checkpointer.restore(update)[0], update)

    def verify(self) -> list[str]:
        """Read all that is stored, byte by byte, and compare each snapshot that counts with what was saved."""
        problems = list(self.checkpointer.damaged)
        with PLACES.installed():
            report = fsck.check(Store.open(self._url))
            problems += [f"{finding.name}: {finding.problem}" for finding in report.findings]
            for commit in CommitLog(Store.open(self._url)).history().ancestry:
                try:
                    checked_state(Checkpointer(self._url).restore(commit.update)[0], commit.update)
                except (CheckpointError, Altered) as error:
                    problems.append(str(error))
        return problems

    def prune(self) -> None:
        """`gradwire checkpoint prune`: keep the newest snapshot alone."""
        with PLACES.installed():
            collector, plan = plan_prune(Store.open(self._url), Retention(1, 0, "eval/loss"))
            collector.carry_out(plan)

    def repair(self) -> None:
        """`gradwire checkpoint fsck --repair`."""
        with PLACES.installed():
            store = Store.open(self._url)
            repair(store, fsck.check(store))

    def lose(self, update: int) -> None:
        """Damage a snapshot: its part is gone."""
        with PLACES.installed():
            Store.open(self._url).delete(self.checkpointer.at(update).parts[0].name)

    def end(self) -> None:
        """Nothing goes on after the last save."""

    def expects(self, error: Exception) -> bool:
        return isinstance(error, CheckpointError)


def on_disk(disk: Disk) -> GradwireSession:
    return GradwireSession(lambda: LocalObjects(FOLDER, disk))


def state_at(update: int) -> State:
    tensors = tensors_at(update)
    return State({"model": tensors, "update": update}, {"residual": tensors["weight"][::2] * 3})


def checked_state(state: State, update: int) -> int:
    """The update, if the state is its to the bit. Raises Altered where it is not."""
    wanted = state_at(update)
    whole = checked(dict(state.shared["model"]), f"update {update}") == update == state.shared[
        "update"
    ] and state.local["residual"].equal(wanted.local["residual"])
    if not whole:
        raise Altered(f"update {update} came back altered")
    return update
