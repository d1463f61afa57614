"""What is to be done: one record that goes from the command to every rank, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.trainer.launch.errors import PlacementError
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.run_directory import CONFIG


@dataclass(frozen=True)
class Job:
    """A composed and validated command.

    Attributes:
        config: The resolved configuration: plain dicts, lists and scalars.
        mode: `train`, `evaluate` or `batch-size`.
        restore: Checkpoint to start from: `latest`, an update, `latest-if-any`, or None for a fresh start.
        allow: Module prefixes that this command's user allows as targets, beside the built-in ones.
        overrides: The overrides as typed.
        run_dir: Absolute run directory, or None while it has still to be created.
        arguments: What the mode is told beside the configuration; JSON's own types.
    """

    config: Mapping[str, Any]
    mode: str = "train"
    restore: str | None = None
    allow: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    run_dir: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def at(self, run_dir: Path) -> "Job":
        """The same job in a run directory that exists."""
        return replace(self, run_dir=run_dir)

    def repeatable(self) -> "Job":
        """The same training for a launcher that repeats its command: each start goes on from what the last one saved.

        Raises:
            PlacementError: nothing says where the snapshots of an earlier start would be.
        """
        named: str | None = self.config["run"]["dir"]
        if named is None and self.store_url is None:
            raise PlacementError(
                "--resume needs run.dir=DIR, or checkpoint.url=URL where hosts share no disk: another start of the "
                "same command looks there for what this one saved."
            )
        begun = named is not None and (Path(named) / CONFIG).is_file()
        run_dir = Path(named).resolve() if named is not None and begun else None
        return replace(self, restore="latest-if-any", run_dir=run_dir)

    @property
    def patience(self) -> float:
        """Seconds to wait for the run directory: where a start repeats another, that one's processes may still end."""
        return 10.0 if self.restore == "latest-if-any" or self.elastic else 0.0

    @property
    def elastic(self) -> bool:
        """Whether hosts may come and go while it runs."""
        return Hosts.of(self.config["launch"]["hosts"]).elastic

    @property
    def store_url(self) -> str | None:
        """Where snapshots go, or None for the run directory's own store."""
        url: str | None = self.config.get("checkpoint", {}).get("url")
        return url

    def to_json(self) -> str:
        """The record as one line of JSON."""
        fields = {**self.__dict__, "run_dir": None if self.run_dir is None else str(self.run_dir)}
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str) -> "Job":
        """The record that `to_json` wrote."""
        fields = json.loads(text)
        for name in ("allow", "overrides"):
            fields[name] = tuple(fields[name])
        fields["run_dir"] = None if fields["run_dir"] is None else Path(fields["run_dir"])
        return Job(**fields)
