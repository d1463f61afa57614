"""Sweeps against plainer ones: what each finds, and the updates that it takes.

    python -m benchmarks.sweeps [--only pruning hyperband pbt] [--seeds N] [--parallel N] [--json FILE]

Every trial is a real run of a small decoder on the standard library's source, on one rank, or on two where its contest
says so.

pruning    30 trials by TPE, 5 of them random, under Hyperband of one rung, against a grid of 30: two ranks
hyperband  a grid under Hyperband, against the whole grid: the same configuration is to be found
pbt        a population over rates that nothing else schedules, against as many whole runs at fixed rates

A seed is that of the sweep and of its runs. Updates are those that were computed: of a trial that was ended by a signal
also those after the evaluation that decided. `--json` keeps what the file holds of other contests.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer.sweep.objectives import last_update

GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]
TRIAL = [
    "model=decoder_1m",
    "model.layers=1",
    "data.context=32",
    "evaluation.every=100%",
    "evaluation.limit=256",
    "evaluation.samples=0",
    "noise_scale.every=null",
    "run.check_replicas=null",
    "checkpoint=end",
    "launch.device=cpu",
]
RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]


@dataclass(frozen=True)
class Contest:
    """Two ways to search.

    Args:
        name: What it is called.
        trial: What all trials have in common, beside `TRIAL`.
        rival: The plainer way.
        contender: The other.
        most: Largest share of the rival's updates that the contender may take.
        same: Whether it is to find the same configuration, or one that is as good.
        seeds: How many seeds count.
    """

    name: str
    trial: tuple[str, ...]
    rival: tuple[str, ...]
    contender: tuple[str, ...]
    most: float
    same: bool
    seeds: int

    def sweep(self, way: Sequence[str], folder: Path, seed: int) -> list[str]:
        """The overrides of a sweep."""
        return [f"sweep.dir={folder}", f"sweep.seed={seed}", f"run.seed={seed}", *TRIAL, *self.trial, *way]


def choice(values: Sequence[float]) -> str:
    """Values as an override writes them."""
    return ",".join(map(str, values))


CONTESTS = [
    Contest(
        "pruning",
        ("model.width=32", "run.length=240 updates", "lr=warmup_cosine", "launch.processes=2"),
        (
            f"optimizer.lr={choice([0.0003, 0.001, 0.003, 0.01, 0.03, 0.1])}",
            "model.dropout=0.0,0.1,0.2,0.3,0.4",
            "sweep/sampler=grid",
        ),
        (
            "optimizer.lr=tag(log, interval(3e-4, 1e-1))",
            "model.dropout=interval(0.0, 0.4)",
            "sweep.trials=30",
            "sweep.sampler.startup=5",
            "sweep/pruner=hyperband",
            "sweep.pruner.factor=4",
            "sweep.pruner.rungs=1",
            "sweep.pruner.brackets=1",
        ),
        most=0.5,
        same=False,
        seeds=5,
    ),
    Contest(
        "hyperband",
        ("run.length=450 updates", "lr=constant", "launch.processes=1"),
        (
            f"optimizer.lr={choice(RATES)}",
            "model.width=16,32,64,128",
            "sweep/sampler=grid",
            "sweep.sampler.shuffle=true",
        ),
        (
            f"optimizer.lr={choice(RATES)}",
            "model.width=16,32,64,128",
            "sweep/sampler=grid",
            "sweep.sampler.shuffle=true",
            "sweep/pruner=hyperband",
            "sweep.pruner.rungs=2",
            "sweep.pruner.brackets=2",
        ),
        most=0.4,
        same=True,
        seeds=3,
    ),
    Contest(
        "pbt",  # updates of one sample, whose noise wants a rate that falls
        ("model.width=32", "run.length=3000 updates", "batch.size=1", "lr=constant", "launch.processes=1"),
        ("optimizer.lr=tag(log, interval(3e-4, 3e-2))", "sweep/sampler=quasi", "sweep.trials=8"),
        (
            "optimizer.lr=tag(log, interval(3e-4, 3e-2))",
            "sweep/sampler=pbt",
            "sweep.sampler.population=8",
            "sweep.sampler.generations=10",
            "sweep.sampler.spread=0.2",
            "sweep.sampler.resampled=0",
        ),
        most=1.0,
        same=False,
        seeds=3,
    ),
]


@dataclass(frozen=True)
class Found:
    """What a sweep found.

    Args:
        loss: The best trial's.
        parameters: Its values.
        updates: Computed by all trials.
        seconds: That the sweep took.
    """

    loss: float
    parameters: Mapping[str, Any]
    updates: int
    seconds: float


@dataclass(frozen=True)
class Round:
    """A contest under one seed."""

    contest: str
    seed: int
    rival: Found
    contender: Found

    @property
    def share(self) -> float:
        """The contender's updates over the rival's."""
        return self.contender.updates / self.rival.updates


def searched(overrides: Sequence[str], folder: Path) -> Found:
    """Run a sweep to its end."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled"}
    began = time.monotonic()
    subprocess.run([*GRADWIRE, "sweep", *overrides], env=environ, stdout=subprocess.DEVNULL, check=True)
    seconds = time.monotonic() - began
    show = [*GRADWIRE, "sweep", "show", str(folder), "--json"]
    told = json.loads(subprocess.run(show, env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return summed(told, seconds)


def summed(told: Mapping[str, Any], seconds: float) -> Found:
    """What `gradwire sweep show --json` says of a sweep, with the updates that its trials computed."""
    trials = told["trials"]
    reached = [max(each["update"], last_update(Path(each["folder"]))) for each in trials]
    begun = [0 if each["parent"] is None else reached[each["parent"]] for each in trials]
    best = trials[told["best"][0]]
    (loss,) = best["objectives"].values()
    return Found(loss, best["parameters"], sum(reached) - sum(begun), seconds)


def held(contest: Contest, seed: int, parallel: int, folder: Path) -> Round:
    """Hold a contest under one seed."""
    found = [
        searched([*contest.sweep(way, folder / name, seed), f"sweep.parallel={parallel}"], folder / name)
        for name, way in (("rival", contest.rival), ("contender", contest.contender))
    ]
    return Round(contest.name, seed, *found)


def passed(contest: Contest, rounds: Sequence[Round]) -> bool:
    """Whether the contender did in the median round, or in all where the same is to be found, what it is to do."""
    if any(each.share > contest.most for each in rounds):
        return False
    if contest.same:
        return all(each.rival.parameters == each.contender.parameters for each in rounds)
    return statistics.median(each.contender.loss - each.rival.loss for each in rounds) <= 0


def to_markdown(rounds: Sequence[Round]) -> str:
    """A row for each round."""
    lines = ["| contest | seed | loss, plainly | loss | updates, plainly | updates | share | found |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for each in rounds:
        values = ", ".join(f"{key} {value:.4g}" for key, value in each.contender.parameters.items())
        same = ", the same" if each.rival.parameters == each.contender.parameters else ""
        lines.append(
            f"| {each.contest} | {each.seed} | {each.rival.loss:.4f} | {each.contender.loss:.4f} | "
            f"{each.rival.updates:,} | {each.contender.updates:,} | {each.share:.2f} | {values}{same} |"
        )
    return "\n".join(lines)


def keep(file: Path, rounds: Sequence[Round], verdicts: Mapping[str, bool]) -> None:
    """Write rounds and verdicts into a file, beside those of other contests that it holds."""
    held = json.loads(file.read_text()) if file.exists() else {"rounds": [], "passed": {}}
    others = [each for each in held["rounds"] if each["contest"] not in verdicts]
    told = {"rounds": others + list(map(asdict, rounds)), "passed": {**held["passed"], **verdicts}}
    file.write_text(json.dumps(told, indent=2) + "\n")


def main() -> int:
    """Hold the contests, print the rounds; 1 where a contender did not do what it is to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [contest.name for contest in CONTESTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, help="seeds of each contest; by default as many as count")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once, where they have one rank")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds: list[Round] = []
    verdicts: dict[str, bool] = {}
    for contest in (contest for contest in CONTESTS if contest.name in options.only):
        parallel = 1 if "launch.processes=2" in contest.trial else options.parallel
        mine = []
        for seed in range(options.seeds or contest.seeds):
            with tempfile.TemporaryDirectory(prefix="gradwire-sweeps-") as folder:
                mine.append(held(contest, seed, parallel, Path(folder)))
            print(to_markdown(mine[-1:]).splitlines()[-1], flush=True)
        verdicts[contest.name] = passed(contest, mine)
        rounds += mine
    print(f"\n{to_markdown(rounds)}\n\n{verdicts}")
    if options.json is not None:
        keep(options.json, rounds, verdicts)
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
