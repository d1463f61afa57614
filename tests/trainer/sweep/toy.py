"""A sweep whose trials are real processes and cost next to nothing: a controller cannot tell them from training runs.

A trial's run takes ten updates, evaluates (x − 0.3)² / update after each, saves after each, ends with 75 on SIGTERM,
goes on from where it saved, and claims its folder while it runs. What it saves is a line in `ran`, written at once: a
run that is killed has done an update or has not. `python toy.py DIR …` is a controller of a sweep over such runs;
`python toy.py --trial OVERRIDES` is a run.
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradwire.trainer.sweep.executors.local as local
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.launch.claim import hold
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.attempt import Attempt
from gradwire.trainer.sweep.controller import Controller
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.errors import SweepError
from gradwire.trainer.sweep.executors.base import Launch
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.space import read
from gradwire.trainer.sweep.stage import WHOLE, Pause, Stage

UPDATES = 10
INHERITED = "inherited"
HELD = "held"  # a file of the run that was held, which is the first of a sweep with `hold`


@dataclass(frozen=True)
class ToyLaunch(Launch):
    """A launch of this file's own runs."""

    def command(self) -> list[str]:
        return [sys.executable, __file__, "--trial", *self.overrides]


class Toy(local.Local):
    """Starts this file's runs in the place of training runs."""

    def start(self, launch: Launch, slot: int, slots: int) -> local.Process:
        return super().start(ToyLaunch(**vars(launch)), slot, slots)


@dataclass(frozen=True)
class ToyDefinition(Definition):
    """A sweep over this file's runs."""

    def component(self, name: str) -> Any:
        return Toy() if name == "executor" else super().component(name)

    def inherit(self, parent: Path, run_dir: Path) -> None:
        files.write(run_dir / INHERITED, str(saved(parent)))

    def samples(self, run_dir: Path, stage: Stage = WHOLE) -> int:
        return until(stage.stop_at or "100%")


def saved(run_dir: Path) -> int:
    """The update that a run has saved, or began with."""
    ran, inherited = run_dir / "ran", run_dir / INHERITED
    done = ran.read_text().split() if ran.exists() else []
    return int(done[-1]) if done else int(inherited.read_text()) if inherited.exists() else 0


def until(share: str) -> int:
    """The updates of a share of a run, in per cents."""
    return round(UPDATES * float(share.rstrip("%")) / 100)


def definition(directory: Path, *space: str, **changes: Any) -> ToyDefinition:
    """A sweep of eight trials over x in [0, 1] by TPE, unless told otherwise."""
    targets = {"sampler": "samplers.Tpe", "pruner": "pruners.Median"}
    section: dict[str, Any] = {
        "objective": "eval/loss",
        "constraints": [],
        "trials": 8,
        "seed": 0,
        "seeds": 1,
        "parallel": 1,
        "failures": 2,
        "storage": None,
        "sampler": {"_target_": f"gradwire.trainer.sweep.{targets['sampler']}", "startup": 3},
        "pruner": None,
        "executor": None,
    } | changes
    found, mistakes = read(list(space) or ["x=interval(0,1)"], {}, Sources())
    assert mistakes == []
    return ToyDefinition(
        directory=directory,
        study="toy",
        section=section,
        space=found,
        overrides=(),
        config_dir=None,
        cwd=directory,
        name="toy",
        seed=0,
        wandb=False,
    )


class Silent:
    """Shows nothing."""

    def began(self, attempt: Attempt) -> None: ...

    def ended(self, number: int, outcome: Result | Pause) -> None: ...

    def look(self) -> None: ...


def ledger_of(sweep: Definition) -> Ledger:
    """The sweep's ledger."""
    return Ledger.open(
        sweep.directory, sweep.section["storage"], sweep.study, sweep.space, sweep.objectives, sweep.constraints
    )


def control(sweep: Definition) -> int:
    """Work on the sweep in this process."""
    sweep.directory.mkdir(parents=True, exist_ok=True)
    return int(Controller(sweep, ledger_of(sweep), ControllerSignals(), Silent()).run())


def results(sweep: Definition) -> list[tuple[Any, ...]]:
    """What came of each trial, without what depends on the clock on the wall."""
    return [
        (each.number, each.state.name, each.params, each.values, each.intermediate_values, each.user_attrs["update"])
        for each in ledger_of(sweep).trials()
    ]


def trial(overrides: dict[str, str]) -> int:
    """One run."""
    run_dir, stop = Path(overrides["run.dir"].strip("'")), list[int]()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    release = hold(run_dir, 60)  # another controller's may still be on its way out
    (run_dir / "config.yaml").touch()
    update = saved(run_dir)
    _say(run_dir, "running")
    _forget(run_dir, update)
    end = until(overrides.get("run.stop_at", "100%"))
    while update < end and not stop:
        update += 1
        time.sleep(float(overrides.get("pace", "0.01")))
        behaviour = overrides.get("do", "train")
        if update == 5 and behaviour == "crash":
            _say(run_dir, "failed", {"kind": "error", "message": "out of memory, say"})
            return 1
        if behaviour != "mute":
            _log(run_dir, update, float(overrides["x"]) + 0.001 * int(overrides.get("run.seed", 0)), behaviour)
        with (run_dir / "ran").open("a") as file:
            file.write(f"{update}\n")
        if update == int(overrides.get("hold", 0)) and not list(run_dir.parent.glob(f"*/{HELD}")):
            _hold(run_dir, stop)
    _say(run_dir, "done" if update == UPDATES else "preempted")
    release()
    return 0 if update == UPDATES else 75


def _hold(run_dir: Path, stop: list[int]) -> None:
    """Stay where the run is until it is killed or told to stop."""
    (run_dir / HELD).touch()
    while not stop:
        time.sleep(0.01)


def _forget(run_dir: Path, update: int) -> None:
    """Take away what was logged after an update."""
    metrics = run_dir / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    kept = [line for line in lines if json.loads(line)["update"] <= update]
    if kept != lines:
        files.write(metrics, "".join(kept))


def _log(run_dir: Path, update: int, x: float, behaviour: str) -> None:
    loss: float | str = "NaN" if behaviour == "nan" else (x - 0.3) ** 2 + 1 / update
    with (run_dir / "metrics.jsonl").open("a") as file:
        record = {"update": update, "samples": update, "tokens": update, "eval/loss": loss, "memory": x}
        file.write(json.dumps(record) + "\n")


def _say(run_dir: Path, status: str, failure: dict[str, str] | None = None) -> None:
    record = {"status": status, "pid": os.getpid(), "host": os.uname().nodename, "failure": failure}
    files.write(run_dir / "status.json", json.dumps(record))


def main(arguments: list[str]) -> int:
    """A run, or a controller: `DIR JSON-of-changes SPACE…`."""
    if arguments[0] == "--trial":
        return trial(dict(each.lstrip("+").split("=", 1) for each in arguments[1:]))
    sweep = definition(Path(arguments[0]), *arguments[2:], **json.loads(arguments[1]))
    sweep.directory.mkdir(parents=True, exist_ok=True)
    signals = ControllerSignals()
    signals.install()
    try:
        return int(Controller(sweep, ledger_of(sweep), signals, Silent()).run())
    except SweepError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
