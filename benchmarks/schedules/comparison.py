"""Experiments that train several arms from the same weights on the same samples and compare what they reach."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from benchmarks.schedules.pool import Pool
from benchmarks.schedules.results import Data, Finding, Table, mean, shown
from benchmarks.schedules.training import Outcome, Run, train

TUNING_SEED = 1000  # no arm is compared on it
QUICKLY = 64  # samples of a quick run's evaluations


@dataclass(frozen=True)
class Column:
    """A figure of each run.

    Args:
        header: Its name in the table.
        key: Its name in an outcome.
        scale: What it is multiplied with for the table.
        digits: Decimal places in the table.
    """

    header: str
    key: str
    scale: float = 1.0
    digits: int = 3


LOSS = Column("validation loss", "loss", digits=4)
TRAIN_LOSS = Column("training loss", "train_loss", digits=5)
ERROR = Column("validation error, %", "error", scale=100, digits=2)


@dataclass(frozen=True)
class Comparison:
    """Arms, compared with the first of them, whose learning rate alone is tuned.

    Args:
        key: Letter of the experiment.
        title: The question.
        source: The paper.
        about: What is run, in a few sentences.
        arms: The runs, the baseline first, given the peak learning rate and whether they are to be quick.
        grid: Learning rates that the baseline is tried with.
        columns: Figures of the table.
        judge: The findings, from the runs of each arm.
        by_updates: Whether the picture shows the loss over updates instead of samples.
    """

    key: str
    title: str
    source: str
    about: str
    arms: Callable[[float, bool], Sequence[Run]]
    grid: Sequence[float]
    columns: Sequence[Column]
    judge: Callable[["Arms"], list[Finding]]
    by_updates: bool = False

    def measure(self, seeds: Sequence[int], quick: bool, pool: Pool) -> dict[str, Any]:
        """Tune the baseline's learning rate with one seed, then run every arm with every seed."""
        grid = self.grid[:1] if quick else self.grid
        evaluated = QUICKLY if quick else Run.evaluated
        tried = [dataclasses.replace(self.arms(lr, quick)[0], seed=TUNING_SEED, evaluated=evaluated) for lr in grid]
        losses = [outcome.loss for outcome in pool.map(train, tried)]
        _, lr = min((float("inf") if loss is None else loss, lr) for loss, lr in zip(losses, grid, strict=True))
        arms = self.arms(lr, quick)
        runs = [dataclasses.replace(arm, seed=seed, evaluated=evaluated) for arm in arms for seed in seeds]
        outcomes = pool.map(train, runs)
        return {
            "tuning": {f"{lr:g}": loss for lr, loss in zip(grid, losses, strict=True)},
            "lr": lr,
            "arms": {arm.arm: _summary(arm, outcomes) for arm in arms},
        }

    def setting(self, data: Data) -> str:
        """What was run, with the learning rates that were tried."""
        tried = ", ".join(data["tuning"])
        return (
            f"{self.about} The learning rate {data['lr']:g} is the baseline's best of {tried}, found on another seed."
        )

    def table(self, data: Data) -> Table:
        """One row an arm."""
        headers = ["arm", "updates", *(column.header for column in self.columns)]
        rows = [[name, str(arm["updates"]), *self._figures(arm["runs"])] for name, arm in data["arms"].items()]
        return Table(headers, rows)

    def _figures(self, runs: Sequence[Data]) -> list[str]:
        return [shown([run[c.key] for run in runs], c.scale, c.digits) for c in self.columns]

    def findings(self, data: Data) -> list[Finding]:
        """The claims and whether they show."""
        return self.judge(Arms(data["arms"]))

    def draw(self, data: Data, axes: Axes) -> None:
        """Validation loss of the first seed over the run."""
        for name, arm in data["arms"].items():
            points = [point for point in arm["runs"][0]["curve"] if point[2] is not None and point[0]]
            axes.plot([point[self.by_updates] for point in points], [point[2] for point in points], label=name)
        axes.set_xlabel("updates" if self.by_updates else "samples")
        axes.set_ylabel("validation loss")
        axes.set_yscale("log")
        axes.legend(fontsize=7)


@dataclass(frozen=True)
class Arms:
    """The runs of each arm."""

    data: Mapping[str, Data]

    def values(self, arm: str, key: str) -> list[float | None]:
        """A figure of an arm's runs, seed by seed."""
        return [run[key] for run in self.data[arm]["runs"]]

    def mean(self, arm: str, key: str) -> float:
        """A figure's mean over the seeds."""
        return mean(self.values(arm, key))

    def updates(self, arm: str) -> int:
        """Updates of an arm."""
        return int(self.data[arm]["updates"])

    def difference(self, arm: str, base: str, key: str = "loss") -> float:
        """By which share an arm's mean lies above another's."""
        return self.mean(arm, key) / self.mean(base, key) - 1

    def saved(self, arm: str, base: str) -> float:
        """Which share of another arm's updates an arm does without."""
        return 1 - self.updates(arm) / self.updates(base)


def _summary(arm: Run, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    plan = arm.plan
    steps = [step for _, step in plan.updates()]
    return {
        "updates": plan.total_updates,
        "samples": plan.total_samples,
        "batch": [steps[0].batch_size, plan.largest_batch],
        "runs": [rounded(outcome) for outcome in outcomes if outcome.arm == arm.arm],
    }


def rounded(outcome: Outcome) -> dict[str, Any]:
    """An outcome for JSON, losses to six digits."""
    values = dataclasses.asdict(outcome)
    for key in ("loss", "error", "train_loss"):
        values[key] = None if values[key] is None else float(f"{values[key]:.6g}")
    values["curve"] = [[s, u, None if loss is None else float(f"{loss:.5g}")] for s, u, loss in outcome.curve]
    return values
