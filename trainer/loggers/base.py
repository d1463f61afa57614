"""What the trainer tells its loggers, and when."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Record = Mapping[str, float | int | str]


@dataclass(frozen=True)
class RunInfo:
    """What a logger knows of the run.

    Args:
        run_dir: The run's folder; None for a run that writes no files.
        name: Shown name.
        config: The resolved configuration.
        resumed_update: The update that the run continues from; None where it starts anew.
        snapshot_update: That of the snapshot that was read for it; what lies between was replayed from the journal.
        total_updates: Updates of the whole run: those that were done and those that are planned from there on.
        tokens_per_sample: Tokens of a sample.
        world_size: Number of ranks.
        flops_per_token: Floating-point operations of forward and backward a token; None where unknown.
        peak_flops: What one rank's device can compute, operations a second; None looks its name up.
    """

    run_dir: Path | None = None
    name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    resumed_update: int | None = None
    snapshot_update: int | None = None
    total_updates: int = 0
    tokens_per_sample: int = 1
    world_size: int = 1
    flops_per_token: float | None = None
    peak_flops: float | None = None

    @property
    def kept_update(self) -> int:
        """The last update whose records stand; -1 where the run starts anew (perhaps in a failed try's folder)."""
        return -1 if self.resumed_update is None else self.resumed_update


class Logger(Protocol):
    """Takes the metrics of a run; lives on the first rank only."""

    def start(self, info: RunInfo) -> None:
        """The run starts, or continues."""
        ...

    def log(self, record: Record) -> None:
        """One line of metrics: `update`, `samples`, `tokens` and what was measured then."""
        ...

    def finish(self, status: str) -> None:
        """The run ends: `done`, `preempted` or `failed`."""
        ...
