"""Runs a sweep: asks for trials, launches them, ends those that are behind, and writes down what came of them.

Several controllers may work on one sweep, on one host or on several that share its folder: each trial is held by one of
them at a time through a lock that the kernel frees when its controller dies, and another one then takes it over.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.attempt import Attempt
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.errors import StorageError, SweepError, TooManyFailuresError, UnwritableError
from gradwire.trainer.sweep.ledger import Ledger, climb_of, rungs_of
from gradwire.trainer.sweep.population import PARENT
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.stage import Pause, Stage
from gradwire.trainer.sweep.trial import Trial

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_PAUSE = 0.2  # seconds between two looks at what runs
_OTHERS = 1.0  # seconds between two looks at what other controllers did
_ASKING = ".asking"


class Watcher(Protocol):
    """Shows how a sweep goes."""

    def began(self, attempt: Attempt) -> None:
        """A trial was taken in hand."""

    def ended(self, number: int, outcome: Result | Pause) -> None:
        """A trial has a result, or waits at a rung."""

    def look(self) -> None:
        """Some time has passed."""


class Controller:
    """One process that works on a sweep.

    Args:
        definition: The sweep.
        ledger: Its ledger.
        signals: What this process is told, installed already.
        watcher: Shows how it goes.
    """

    def __init__(self, definition: Definition, ledger: Ledger, signals: ControllerSignals, watcher: Watcher) -> None:
        self._definition, self._ledger, self._signals, self._watcher = definition, ledger, signals, watcher
        self._sampler, self._pruner = definition.component("sampler"), definition.component("pruner")
        self._executor, self._ladder = definition.component("executor"), definition.ladder()
        self._population = definition.population()
        self._trials = definition.trials()
        self._attempts: dict[int, Attempt] = {}

    def run(self) -> ExitCode:
        """Work until every trial has a result, or until told to stop.

        Returns:
            0, or 75 where a signal came.

        Raises:
            TooManyFailuresError: more trials failed than may, or all.
            UnwritableError: the storage or the sweep's folder cannot be used any more, or no process be started.
            DamagedSweepError: something in the folder cannot be read.
        """
        self._signals.workers_run = True
        try:
            return self._work()
        except StorageError as error:
            raise UnwritableError(f"the sweep cannot go on: {error}") from error
        except OSError as error:
            place = "" if error.filename is None else f": {error.filename}"
            raise UnwritableError(f"the sweep cannot go on, {error.strerror}{place}") from error
        finally:
            self._stop()

    def _work(self) -> ExitCode:
        due = 0.0
        while True:
            changed = self._advance()
            if self._signals.first is not None:
                return ExitCode.PREEMPTED
            if changed or time.monotonic() >= due:
                self._check_failures()
                self._begin()
                if self._finished():
                    self._check_success()
                    return ExitCode.DONE
                due = time.monotonic() + _OTHERS
            self._watcher.look()
            time.sleep(_PAUSE)

    def _finished(self) -> bool:
        return not self._attempts and len(self._ledger.finished()) >= self._trials

    def _advance(self) -> bool:
        """Let all trials get on; whether one has ended."""
        before = len(self._attempts)
        for number, attempt in list(self._attempts.items()):
            outcome = attempt.advance()
            if outcome is not None:
                self._enter(number, outcome)
                self._let_go(attempt)
                self._watcher.ended(number, outcome)
        return len(self._attempts) < before

    def _enter(self, number: int, outcome: Result | Pause) -> None:
        if isinstance(outcome, Pause):
            self._ledger.pause(number, outcome.value)
        else:
            self._ledger.close(number, outcome)

    def _let_go(self, attempt: Attempt) -> None:
        del self._attempts[attempt.trial.number]
        attempt.release()

    def _check_failures(self) -> None:
        """Raise once too many trials failed."""
        failed = [trial for trial in self._ledger.trials() if trial.state.name == "FAIL"]
        allowed = self._definition.section["failures"]
        if len(failed) > allowed:
            raise TooManyFailuresError(
                f"{len(failed)} trials failed and sweep.failures={allowed}. {self._told(failed[-1])} Go on with "
                f"`gradwire sweep --resume {self._definition.directory} sweep.failures={2 * len(failed)}`."
            )

    def _check_success(self) -> None:
        """Raise where there are only failures."""
        trials = self._ledger.trials()
        if all(trial.state.name == "FAIL" for trial in trials):
            raise TooManyFailuresError(f"all {len(trials)} trials failed. {self._told(trials[-1])}")

    def _told(self, trial: "FrozenTrial") -> str:
        folder = self._definition.trial(trial.number).folder
        return f"The last one was trial {trial.number}: {trial.user_attrs.get('reason')}. Its folder is {folder}."

    def _begin(self) -> None:
        """Fill the free places: with trials that nobody holds any more first, then with new ones."""
        while len(self._attempts) < self._definition.parallel:
            with self._asking() as asked:
                taken = self._take() if asked else None
                if taken is None:
                    return
                trial, release = taken
                try:
                    values = self._ledger.fill(trial.number, self._sampler, self._definition.section["seed"])
                    trial.describe(values, self._definition.space.overrides(values))
                except BaseException:
                    release()
                    raise
            self._attempts[trial.number] = attempt = self._attempt(trial, values, release)
            self._watcher.began(attempt)

    def _attempt(self, trial: Trial, values: dict[str, Any], release: Callable[[], None]) -> Attempt:
        known = self._ledger.trial(trial.number)
        return Attempt(
            trial,
            values,
            self._definition,
            self._ledger,
            self._executor,
            self._pruner,
            self._stage(known),
            self._parent(known),
            self._free_slot(),
            release,
        )

    def _take(self) -> tuple[Trial, Callable[[], None]] | None:
        """A trial without a result that is this controller's from now on; None where there is none left.

        Those that were promoted come first, so that what is known to be good is known better.
        """
        trials = self._ledger.trials()
        promoted = self._settled(trials)
        for each in sorted(trials, key=lambda trial: trial.number not in promoted):
            if each.state.is_finished() or each.number in self._attempts:
                continue
            if rungs_of(each) and each.number not in promoted:
                continue
            trial = self._definition.trial(each.number)
            if (release := trial.hold()) is not None:
                now = self._ledger.trial(each.number)
                if not now.state.is_finished() and rungs_of(now) == rungs_of(each):
                    return trial, release
                release()  # another controller has just brought it further
        if len(trials) >= self._trials or not self._is_ready(trials):
            return None
        trial = self._definition.trial(self._ledger.create())
        while (release := trial.hold()) is None:  # somebody looks whether it is held
            time.sleep(0.01)
        return trial, release

    def _is_ready(self, trials: "list[FrozenTrial]") -> bool:
        """Whether a new trial could begin, as far as those before it go."""
        if self._population is None:
            return True
        if ready := self._population.is_ready(len(trials), trials):
            for number in self._population.outlived(len(trials)):
                self._definition.trial(number).forget()
        return ready

    def _settled(self, trials: "list[FrozenTrial]") -> set[int]:
        """The trials that go on from the rung at which they waited; those that are behind are ended here."""
        if self._ladder is None:
            return set()
        minimize = self._ledger.objectives[0].direction == "minimize"
        verdicts = self._ladder.verdicts([climb_of(each) for each in trials], self._trials, minimize=minimize)
        for number in (number for number, promoted in verdicts.items() if not promoted):
            self._end(self._definition.trial(number))
        return {number for number, promoted in verdicts.items() if promoted}

    def _end(self, trial: Trial) -> None:
        """Prune a trial that waits; whoever holds it at this moment only looks."""
        trial.folder.mkdir(parents=True, exist_ok=True)  # somebody may have made room
        result = Result("pruned", [], [], trial.reached(), trial.seconds())
        result.write(trial.folder)
        self._ledger.close(trial.number, result)
        self._watcher.ended(trial.number, result)

    def _stage(self, trial: "FrozenTrial") -> Stage:
        """The part of a trial that is to be done next."""
        if self._population is not None:
            return Stage(until=self._population.until(trial.number))
        rungs = () if self._ladder is None else self._ladder.rungs(trial.number)
        passed = len(rungs_of(trial))
        return Stage(passed, rungs[passed], last=False) if passed < len(rungs) else Stage(passed)

    def _parent(self, trial: "FrozenTrial") -> Trial | None:
        """The trial whose checkpoints a trial begins with."""
        parent = trial.user_attrs.get(PARENT)
        return None if parent is None else self._definition.trial(parent)

    def _free_slot(self) -> int:
        taken = {attempt.slot for attempt in self._attempts.values()}
        return next(slot for slot in range(self._definition.parallel) if slot not in taken)

    @contextmanager
    def _asking(self) -> Iterator[bool]:
        """One controller at a time asks for a trial: what a sampler sees is whole. False where a signal came first."""
        descriptor = files.lock(self._definition.directory / _ASKING, lambda: self._signals.first is None)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _stop(self) -> None:
        """Have what still runs save and end; it goes on when the sweep is resumed."""
        for attempt in self._attempts.values():
            attempt.stop()
        while any(attempt.running for attempt in self._attempts.values()):
            if self._signals.insisted:
                for attempt in self._attempts.values():
                    attempt.kill()
            with suppress(OSError, SweepError):  # what is in the way of writing is told already, or told by a resume
                self._advance()
            time.sleep(_PAUSE)
        for attempt in list(self._attempts.values()):
            self._let_go(attempt)
