"""What a sweep needs of the place where its trials run."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Launch:
    """One launch of a trial: an ordinary `gradwire train`, which goes on from what an earlier one saved.

    Args:
        overrides: The whole configuration, as overrides.
        config_dir: The user's folder of YAML.
        run_dir: The run's folder; it exists.
        output: Where what the command prints goes, behind what is there.
        cwd: Where the command runs.
        name: What the launch is called where it is seen by others; the same whenever it is launched again.
    """

    overrides: tuple[str, ...]
    config_dir: str | None
    run_dir: Path
    output: Path
    cwd: Path
    name: str

    def command(self) -> list[str]:
        """The command, as a program and its arguments."""
        folder = [] if self.config_dir is None else ["--config-dir", self.config_dir]
        program = [sys.executable, "-P", "-c", "from gradwire.trainer.cli import main; main()"]
        return [*program, "train", "--resume", *folder, *self.overrides]


class Running(Protocol):
    """A launch that was started."""

    def poll(self) -> int | None:
        """None while it runs; then the command's exit code, below zero where it was killed or lost."""

    def stop(self) -> None:
        """Have it save and end, with exit code 75."""

    def kill(self) -> None:
        """End it at once."""


class Executor(Protocol):
    """Starts launches. It is built in the controller and used by it alone."""

    def check(self) -> None:
        """Refuse to begin where trials could not be started.

        Raises:
            ExecutorError: they could not.
        """

    def start(self, launch: Launch, slot: int, slots: int) -> Running:
        """Start a launch.

        Args:
            launch: What to start.
            slot: Which of the places that run at the same time it takes.
            slots: How many those are.

        Raises:
            ExecutorError: it cannot be started.
        """

    def left(self, launch: Launch) -> Running | None:
        """The same launch, where an earlier controller started it and it still runs."""
