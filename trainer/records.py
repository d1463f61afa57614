"""What a run writes down about itself: line by line, what was measured, and where it goes on from."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from gradwire.schedulers import Clock, Step
from gradwire.trainer.communication import Communication
from gradwire.trainer.loggers.base import Logger, RunInfo
from gradwire.trainer.measuring import Measuring
from gradwire.trainer.strategies import Strategy
from gradwire.trainer.times import Times
from gradwire.trainer.update import Outcome


class Records:
    """Gathers what was measured into lines of metrics, and gives them to the loggers.

    Args:
        loggers: On the first rank only.
        strategy: Whose ranks see the loss of a batch together.
        times: Read with each line, as are the other two.
        measuring: The noise scale's averages.
        communication: What reducing the gradients costs.

    Attributes:
        pending: The line whose evaluation was interrupted, for the resumed run to complete; None where none was.
        last: The last line that was written.
    """

    def __init__(
        self,
        loggers: Iterable[Logger],
        strategy: Strategy,
        times: Times,
        measuring: Measuring,
        communication: Communication,
    ) -> None:
        self._loggers = tuple(loggers) if strategy.rank == 0 else ()
        self._strategy = strategy
        self._times = times
        self._measuring = measuring
        self._communication = communication
        self.pending: dict[str, Any] | None = None
        self.last: dict[str, Any] = {}
        self._noted: dict[str, float | int] = {}  # what goes with the next line
        self._snapshot_update: int | None = None  # of the snapshot that was put back
        self._restored_update: int | None = None  # that, or what the journal led to from there

    def restored(self, update: int) -> None:
        """The snapshot of an update was put back."""
        self._restored_update = self._snapshot_update = update

    def replayed(self, update: int) -> None:
        """The journal led on from there to this update."""
        self._restored_update = update

    def start(self, info: RunInfo) -> None:
        """The run starts, or goes on: which of the lines that loggers have already stand is filled in here."""
        kept = self._restored_update
        if kept is not None and self.pending is not None:
            kept -= 1  # the line of this update is written again, once its evaluation is complete
        info = replace(info, resumed_update=kept, snapshot_update=self._snapshot_update)
        for logger in self._loggers:
            logger.start(info)

    def finish(self, status: str) -> None:
        """The run ends: `done`, `preempted` or `failed`."""
        for logger in self._loggers:
            logger.finish(status)

    def note(self, values: Mapping[str, float | int]) -> None:
        """Have these go with the next line of metrics, once."""
        self._noted |= values

    def measured(self, clock: Clock, step: Step, outcome: Outcome) -> dict[str, Any]:
        """The metrics of the update just done; the loss is the mean over the whole global batch. A collective."""
        mine = torch.tensor([outcome.loss_sum.item(), outcome.counted], dtype=torch.float64)
        total, targets = self._strategy.start_sum(mine).wait().tolist()
        noted, self._noted = self._noted, {}
        return (
            _position(clock)
            | {
                "train/loss": total / max(targets, 1),
                "lr": step.lr,
                "batch_size": step.batch_size,
                "grad_norm": outcome.grad_norm,
            }
            | self._times.take()
            | self._measuring.metrics(step.batch_size)
            | self._communication.metrics()
            | noted
        )

    def evaluated(
        self, clock: Clock, line: dict[str, Any], evaluate: Callable[[], dict[str, float | str]]
    ) -> dict[str, Any]:
        """A line, which may be empty yet, with the results of an evaluation. Interrupted, it stays as `pending`."""
        self.pending = _position(clock) | line
        began = time.perf_counter()
        found = self.pending | evaluate()
        return found | {"time/evaluation_ms": 1000 * (time.perf_counter() - began)}

    def write(self, line: dict[str, Any]) -> None:
        """Give a line to the loggers; nothing is pending from then on."""
        self.pending = None
        if line:
            self.last = line
            for logger in self._loggers:
                logger.log(line)

    def numbers_of(self, update: int) -> dict[str, float]:
        """What was measured of this very update."""
        if self.last.get("update") != update:
            return {}
        return {key: value for key, value in self.last.items() if isinstance(value, int | float)}


def _position(clock: Clock) -> dict[str, Any]:
    return {"update": clock.updates, "samples": clock.samples, "tokens": clock.tokens}
