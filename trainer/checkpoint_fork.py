"""`gradwire checkpoint fork`: a new store, or a run directory with one, that begins at a snapshot of another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.checkpoint.fork import fork
from gradwire.checkpoint.memory import MEMORY
from gradwire.checkpoint.store import Store
from gradwire.trainer.checkpoint_reference import Reference
from gradwire.trainer.launch.errors import RunExistsError
from gradwire.trainer.launch.run_directory import CONFIG, OVERRIDES, write_config


@dataclass(frozen=True)
class Forked:
    """What came of it.

    Attributes:
        values: For scripts.
        sentence: For people.
    """

    values: dict[str, Any]
    sentence: str


def fork_to(reference: Reference, target: str) -> Forked:
    """Copy the snapshot to a URL; from a run to a path, make that a run directory that `gradwire resume` continues.

    Raises:
        RunExistsError: the path holds a run already.
        CheckpointError: as of `gradwire.checkpoint.fork.fork`.
    """
    as_run = reference.run is not None and "://" not in target
    directory = Path(target)
    if as_run and (directory / CONFIG).exists():
        raise RunExistsError(f"{target} already holds a run: choose another directory.")
    forked = fork(reference.store, Store.open(str(directory / "checkpoints") if as_run else target), reference.ref)
    if as_run and reference.run is not None:
        _make_run(reference.run, directory)
    values = {"target": target, "update": forked.update, "snapshot": forked.commit.update, "bytes": forked.size}
    then = f"; continue it with `gradwire resume {target}`" if as_run else ""
    return Forked(values, f"{target} begins at update {forked.update} of {reference.store.url}{then}")


def _make_run(source: Path, directory: Path) -> None:
    """A run directory whose stores are its own: other tiers than memory belong to the run that was forked."""
    import yaml  # type: ignore[import-untyped]

    config = yaml.safe_load((source / CONFIG).read_text())
    config["run"]["dir"] = str(directory)
    config["checkpoint"]["url"] = None
    config["checkpoint"]["tiers"] = [each for each in config["checkpoint"].get("tiers", []) if each == MEMORY]
    overrides = source / OVERRIDES
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "logs").mkdir(exist_ok=True)
    write_config(directory, config, overrides.read_text().splitlines() if overrides.exists() else [])
