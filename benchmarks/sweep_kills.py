"""A sweep whose controller and trials are killed at random moments, against the same sweep undisturbed.

python benchmarks/sweep_kills.py --kills 20 [--trials 8] [--seed 0] [--json FILE]

Both sweeps ask by TPE and end trials by the median. The disturbed one's controller is killed at random moments
and started again with `gradwire sweep --resume`; at every second kill the launch of a trial is killed instead, and at
every fourth both. Compared are each trial's values, its result, every line of its metrics, and what was done twice.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]
TRIAL = [
    "model=decoder_1m",
    "model.width=32",
    "model.layers=1",
    "data.context=32",
    "run.length=60 updates",
    "run.log_every=1",
    "evaluation.every=10 updates",
    "evaluation.limit=32",
    "evaluation.samples=0",
    "checkpoint=journal",
    "launch.processes=1",
    "launch.device=cpu",
]
SEARCH = ["optimizer.lr=tag(log, interval(1e-4, 1e-1))", "lr=warmup_cosine,wsd"]
HOW = ["sweep.sampler.startup=3", "sweep/pruner=median", "sweep.pruner.startup=2"]


EXACT = ("update", "samples", "tokens", "train/loss", "eval/loss", "lr", "batch_size", "grad_norm")


@dataclass(frozen=True)
class Outcome:
    """What the kills did.

    Args:
        kills: How many there were, by what was killed.
        trials: Trials of the sweep.
        differing: Trials whose values, result or metrics are not those of the undisturbed sweep.
        missing: Numbers without a result.
        repeated: Updates that were computed and logged more than once, over all trials.
        updates: Updates of all trials.
    """

    kills: dict[str, int]
    trials: int
    differing: list[int]
    missing: list[int]
    repeated: int
    updates: int


def sweep(folder: Path, trials: int) -> list[str]:
    """The command that begins a sweep in a folder."""
    return [*GRADWIRE, "sweep", f"sweep.dir={folder}", f"sweep.trials={trials}", *SEARCH, *HOW, *TRIAL]


def start(command: list[str]) -> "subprocess.Popen[bytes]":
    """A controller, in a session of its own."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, start_new_session=True)


def disturbed(folder: Path, trials: int, kills: int, seed: int) -> dict[str, int]:
    """Run a sweep to its end, killing as often as told; how often what was killed."""
    moments, done = random.Random(seed), {"controller": 0, "trial": 0}
    controller = start(sweep(folder, trials))
    while not (folder / "sweep.json").exists():
        time.sleep(0.05)
    while controller.poll() is None or controller.returncode != 0:
        left = kills - sum(done.values())
        try:
            controller.wait(moments.uniform(1, 12) if left > 0 else None)
        except subprocess.TimeoutExpired:
            number = sum(done.values())
            if number % 2 and (launches := launches_of(controller.pid)):
                os.kill(launches[0], signal.SIGKILL)
                done["trial"] += 1
            if number % 2 == 0 or number % 4 == 3:
                controller.kill()
                controller.wait()
                done["controller"] += 1
        if controller.poll() is not None and controller.returncode != 0:
            controller = start([*GRADWIRE, "sweep", "--resume", str(folder)])
    return done


def launches_of(controller: int) -> list[int]:
    """The launches that a controller has running."""
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    return [int(pid) for pid in children]


def told(folder: Path) -> list[dict[str, Any]]:
    """What a sweep says of its trials, without what depends on the folder and the clock on the wall."""
    command = [*GRADWIRE, "sweep", "show", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        {key: value for key, value in each.items() if key not in ("folder", "seconds")}
        for each in json.loads(done.stdout)["trials"]
    ]


def metrics(folder: Path, number: int, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """What is the same in every undisturbed run of a trial's metrics: not what measures time."""
    path = folder / "trials" / str(number) / name
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{key: line[key] for key in EXACT if key in line} for line in lines]


def compared(undisturbed: Path, killed: Path, trials: int, kills: dict[str, int]) -> Outcome:
    """The two sweeps side by side; of a pruned trial the metrics up to the update that counts."""
    left, right = told(undisturbed), told(killed)
    differing = []
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        until = one["update"]
        lines = [
            [line for line in metrics(where, number) if line["update"] <= until] for where in (undisturbed, killed)
        ]
        if one != other or lines[0] != lines[1]:
            differing.append(number)
            unlike = next((pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]), None)
            print(f"trial {number}: {one} | {other} | {unlike}")
    abandoned = sum(len(metrics(killed, number, "metrics.abandoned.jsonl")) for number in range(trials))
    total = sum(len(metrics(killed, number)) for number in range(trials))
    missing = [number for number in range(trials) if number >= len(right) or right[number]["state"] == "open"]
    return Outcome(kills, trials, differing, missing, abandoned, total)


def main() -> int:
    """Run both, print the comparison; 1 where they differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gradwire-sweep-kills-") as made:
        undisturbed, killed = Path(made) / "undisturbed", Path(made) / "killed"
        assert start(sweep(undisturbed, options.trials)).wait() == 0
        kills = disturbed(killed, options.trials, options.kills, options.seed)
        outcome = compared(undisturbed, killed, options.trials, kills)
    print(json.dumps(asdict(outcome), indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(outcome), indent=2) + "\n")
    return 1 if outcome.differing or outcome.missing else 0


if __name__ == "__main__":
    sys.exit(main())
