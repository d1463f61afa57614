"""What `URL-OR-RUN[@UPDATE-OR-TAG]` on the command line means."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.launch.run_directory import CONFIG, RUNS, RunReference, split_update

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradwire.checkpoint.commit import Commit
    from gradwire.checkpoint.store import Store

_TAGGED = re.compile(r"(.+)@([A-Za-z0-9][A-Za-z0-9._-]{0,99})")


@dataclass(frozen=True)
class Reference:
    """A store, and perhaps a snapshot in it.

    Attributes:
        store: The store.
        run: The run directory that the store belongs to, if one was named.
        ref: An update, the name of a tag, or None for the newest.
    """

    store: "Store"
    run: Path | None
    ref: int | str | None

    @staticmethod
    def parse(text: str) -> "Reference":
        """Find a store by its URL, its path, or that of a run directory, or by a run's name under runs/.

        Raises:
            RunNotFoundError: there is nothing of that name or path; the newest runs are listed.
            StoreError: the URL cannot be a store, or the store cannot be listed.
        """
        name, update = split_update(text)
        if update is not None:
            return Reference(*_located(name), update)
        tagged = _TAGGED.fullmatch(text)
        if tagged is None or _holds_snapshots(text):
            return Reference(*_located(text), None)
        return Reference(*_located(tagged[1]), tagged[2])

    def find(self) -> "Commit":
        """The commit that is meant.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        from gradwire.checkpoint.reading import find

        return find(self.store, self.ref)

    def on_branch(self) -> "Commit":
        """The commit that is meant, if its update alone means it too.

        Raises:
            CheckpointError: there is none, it cannot be read, or a rollback abandoned it.
        """
        from gradwire.checkpoint import NoCheckpoint
        from gradwire.checkpoint.reading import find

        commit = self.find()
        if find(self.store, commit.update) != commit:
            raise NoCheckpoint(
                f"{self.store.url}: the snapshot {self.ref!r} of update {commit.update} was abandoned by a rollback; "
                "`gradwire checkpoint fork` it to a store of its own first"
            )
        return commit

    def tiers(self) -> "Sequence[Store]":
        """The stores of the run, nearest first; the store alone where no run with tiers was named."""
        from gradwire.checkpoint import StoreError
        from gradwire.checkpoint.tiers import open_tiers

        try:
            return open_tiers(self.store.url, self.setting("tiers", []))[0]
        except StoreError:  # the memory of another kind of host, say
            return [self.store]

    def setting(self, name: str, otherwise: Any) -> Any:
        """What the run's configuration says of `checkpoint.<name>`; `otherwise` where there is no such run or key."""
        return otherwise if self.run is None else _settings(self.run).get(name, otherwise)


def _located(name: str) -> "tuple[Store, Path | None]":
    from gradwire.checkpoint.reading import open_store
    from gradwire.checkpoint.store import Store

    if "://" in name or "::" in name:
        return open_store(name), None
    for directory in (Path(name), RUNS / name):
        if (directory / CONFIG).is_file():
            return Store.open(_settings(directory).get("url") or str(directory / "checkpoints")), directory.resolve()
    if Path(name).is_dir():
        return open_store(name), None
    run = RunReference.parse(name).directory  # raises, listing the runs there are
    return Store.open(str(run / "checkpoints")), run


def _holds_snapshots(text: str) -> bool:
    """Whether a name with an `@` in it is that of a store as it stands."""
    from gradwire.checkpoint.commits import CommitLog
    from gradwire.checkpoint.reading import open_store

    if "://" in text or "::" in text:
        return bool(CommitLog(open_store(text)).sequences())
    return Path(text).is_dir() or (RUNS / text).is_dir()


def _settings(run: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    config = yaml.safe_load((run / CONFIG).read_text())
    settings = config.get("checkpoint") if isinstance(config, dict) else None
    return settings if isinstance(settings, dict) else {}
