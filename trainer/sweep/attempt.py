"""One trial in the hands of a controller: launched, watched, ended early or launched again, until it has a result, or
waits at a rung."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.logs import tail
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.executors.base import Executor, Launch, Running
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.objectives import (
    EVALUATION,
    METRICS,
    SECONDS,
    Measured,
    evaluated,
    history,
    last_sample,
    last_update,
    metrics_of,
)
from gradwire.trainer.sweep.pruners import Pruner
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.stage import WHOLE, Pause, Stage
from gradwire.trainer.sweep.trial import OUTPUT, Trial, status_of_run

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_VAIN = 3  # launches in a row that were killed or stopped by others before their run got on


class Attempt:
    """A trial that this controller holds.

    Args:
        trial: The trial.
        values: Its values.
        definition: The sweep's.
        ledger: The sweep's.
        executor: Where it runs.
        pruner: What may end it early; None ends nothing.
        stage: The part of it that is to be done.
        parent: The trial whose checkpoints it begins with, if any.
        slot: Which of the places it takes.
        release: Lets go of the trial.
    """

    def __init__(
        self,
        trial: Trial,
        values: dict[str, object],
        definition: Definition,
        ledger: Ledger,
        executor: Executor,
        pruner: Pruner | None,
        stage: Stage,
        parent: Trial | None,
        slot: int,
        release: Callable[[], None],
    ) -> None:
        self.trial, self.values, self.slot, self.release = trial, values, slot, release
        self._definition, self._ledger, self._executor, self._pruner = definition, ledger, executor, pruner
        self._stage, self._parent = stage, parent
        self._running: Running | None = None
        self._run = 0
        self._stopped = False
        self._judged = max(ledger.trial(trial.number).intermediate_values, default=0)  # a verdict may have been missed
        self._updates: tuple[int, int] = (-1, 0)  # where the run was at its last launch, and launches in vain since
        self._totals: dict[Stage, int] = {}
        self._size = -1  # of the first run's metrics
        self._names_known = False  # whether its first evaluation was seen

    @property
    def running(self) -> bool:
        """Whether a launch of it runs."""
        return self._running is not None

    def stop(self) -> None:
        """Have the launch save and end; it is not launched again."""
        if self._running is not None and not self._stopped:
            self._running.stop()
        self._stopped = True

    def kill(self) -> None:
        """End the launch at once."""
        if self._running is not None:
            self._running.kill()

    def advance(self) -> Result | Pause | None:
        """Do what there is to do; the outcome once there is one and nothing runs any more."""
        code = None if self._running is None else self._running.poll()
        verdict = self._known() or self._judge()  # of what an earlier controller did not see as well
        if self._running is None:
            return verdict or (None if self._stopped else self._launch())
        if code is None:
            if verdict is not None and not self._stopped:
                self.stop()
            return None
        self._running, self._stopped = None, self._stopped and verdict is None
        self.trial.note_end(self._run, code)
        return verdict or self._ended(code)

    def _known(self) -> Result | Pause | None:
        """The outcome that is in the folder; the ledger, which may have lost its end, has all evaluations then."""
        found = Result.read(self.trial.folder) or Pause.read(self.trial.folder, self._stage.index)
        if found is not None and self._grew():
            for _ in self._entered(found.update):
                pass
        return found

    def _launch(self) -> Result | Pause | None:
        """Launch the first run that is not where it should be, or wait for what an earlier controller left running."""
        over = [self._is_over(run_dir) for run_dir in self.trial.runs]
        if all(over):
            return self._conclude()
        self._run = over.index(False)
        run_dir = self.trial.runs[self._run]
        run_dir.mkdir(parents=True, exist_ok=True)
        if self._parent is not None and (reason := self._inherit(self._parent, run_dir)) is not None:
            return self._failed(reason)
        launch = self._launch_of(self._run)
        self._running = self._executor.left(launch)
        if self._running is None:
            before, vain = self._updates
            now = last_update(run_dir)
            self._updates = (now, vain + 1 if now == before else 0)
            self.trial.note_start(self._run)
            self._running = self._executor.start(launch, self.slot, self._definition.parallel)
        return None

    def _inherit(self, parent: Trial, run_dir: Path) -> str | None:
        """Begin with a parent's checkpoint; what is in the way, if anything is."""
        from gradwire.checkpoint import CheckpointError

        try:
            self._definition.inherit(parent.runs[self._run], run_dir)
        except CheckpointError as error:
            return f"cannot begin with the checkpoint of trial {parent.number}: {error}"
        return None

    def _is_over(self, run_dir: Path) -> bool:
        """Whether a run has done this part of it: it ended there by itself, so what it saved is of there."""
        status = status_of_run(run_dir).get("status")
        if status != "preempted" or self._stage.until is None:
            return status == "done"
        return last_sample(run_dir) >= self._samples(self._stage)

    def _launch_of(self, run: int) -> Launch:
        return Launch(
            overrides=tuple(self._definition.overrides_of(self.trial, self.values, run, self._stage)),
            config_dir=self._definition.config_dir,
            run_dir=self.trial.runs[run],
            output=self.trial.folder / OUTPUT,
            cwd=self._definition.cwd,
            name=f"{self._definition.study}-{self.trial.number}-{run}",
        )

    def _judge(self) -> Result | None:
        """Look at what the trial's first run wrote since the last look."""
        if self._run != 0 or not self._grew():
            return None
        return self._misnamed() or self._behind()

    def _misnamed(self) -> Result | None:
        """A failure at once where the first evaluation shows that a metric will never be there."""
        run_dir = self.trial.runs[0]
        if self._names_known or not (found := evaluated(run_dir)):
            return None
        self._names_known = True
        if self._definition.reports_all_at_once(run_dir):
            for setting, wanted in (("objective", self._ledger.objectives), ("constraints", self._ledger.constraints)):
                for metric in (each.metric for each in wanted):
                    if metric.startswith(EVALUATION) and metric not in found:
                        return self._failed(self._unreported(metric, setting))
        return None

    def _behind(self) -> Result | None:
        """Ask the pruner about each new evaluation, except the run's last one."""
        for measured, reported in self._entered():
            if self._pruner is None or measured.samples >= self._samples(WHOLE):
                continue
            if self._pruner.behind(self._ledger.study, reported):
                return self._write(Result("pruned", [], [], measured.update, self.trial.seconds()))
        return None

    def _entered(self, until: float = math.inf) -> "Iterator[tuple[Measured, FrozenTrial]]":
        """Evaluations of the first run that were not in the ledger, to an update, and the trial with each of them."""
        found = history(self.trial.runs[0], self._ledger.objectives[0].metric)
        for evaluation, measured in list(enumerate(found))[self._judged :]:
            if measured.update > until:
                return
            self._judged = evaluation + 1
            yield measured, self._ledger.report(self.trial.number, evaluation, measured.value)

    def _grew(self) -> bool:
        """Whether there is more of the first run's metrics than there was."""
        try:
            size = (self.trial.runs[0] / METRICS).stat().st_size
        except FileNotFoundError:
            return False
        before, self._size = self._size, size
        return size != before

    def _samples(self, stage: Stage) -> int:
        """Samples of a run by the end of a part of it."""
        if stage not in self._totals:
            self._totals[stage] = self._definition.samples(self.trial.runs[0], stage)
        return self._totals[stage]

    def _ended(self, code: int) -> Result | Pause | None:
        """What a launch that ended by itself means."""
        over = code == ExitCode.PREEMPTED and self._is_over(self.trial.runs[self._run])
        if code == ExitCode.DONE or over:
            return self._conclude() if self._run == len(self.trial.runs) - 1 else None
        if self._stopped:
            return None  # the sweep is being stopped: the trial goes on another time
        failure = status_of_run(self.trial.runs[self._run]).get("failure") or {}
        interrupted = code < 0 or code == ExitCode.PREEMPTED or failure.get("kind") == "killed"
        if interrupted and self._updates[1] < _VAIN - 1:
            return None
        return self._failed(failure.get("message") or self._last_words(code))

    def _last_words(self, code: int) -> str:
        lines = [line for line in tail(self.trial.folder / OUTPUT, 40).splitlines() if line.strip()]
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"{ending}: {lines[-1].strip()}" if lines else ending

    def _conclude(self) -> Result | Pause:
        """What comes of a trial all of whose runs have done this part: it waits, or has its result."""
        values = []
        for objective in self._ledger.objectives:
            measured = [self._values(run_dir, objective.metric) for run_dir in self.trial.runs]
            if not all(measured):
                return self._failed(self._unreported(objective.metric, "objective"))
            values.append(sum(objective.of(each) for each in measured) / len(measured))
        if any(value != value for value in values):
            return self._failed("the objective is NaN")
        if not self._stage.last:
            pause = Pause(self._stage.index, self._reached(), values[0])
            pause.write(self.trial.folder)
            return pause
        excesses = []
        for constraint in self._ledger.constraints:
            measured = [self._values(run_dir, constraint.metric) for run_dir in self.trial.runs]
            if not all(measured):
                return self._failed(self._unreported(constraint.metric, "constraints"))
            excesses.append(constraint.excess(sum(each[-1] for each in measured) / len(measured)))
        return self._write(Result("complete", values, excesses, self._reached(), self.trial.seconds()))

    def _values(self, run_dir: Path, metric: str) -> list[float]:
        if metric == SECONDS:
            return [self.trial.seconds() / len(self.trial.runs)]
        return [measured.value for measured in history(run_dir, metric)]

    def _unreported(self, metric: str, setting: str) -> str:
        found = ", ".join(sorted(metrics_of(self.trial.runs[0]))) or "nothing"
        return f"never reported {metric}, which sweep.{setting} names; its runs report {found}"

    def _failed(self, reason: str) -> Result:
        return self._write(Result("failed", [], [], self._reached(), self.trial.seconds(), " ".join(reason.split())))

    def _reached(self) -> int:
        return self.trial.reached()

    def _write(self, result: Result) -> Result:
        result.write(self.trial.folder)
        return result
