"""Does a killed run end in the same bits? Real runs, killed at random updates, resumed and compared tensor by tensor.

    python benchmarks/exact_resume.py [--json FILE] [--seed N] [--only TEXT]

Each case trains twice from the command line: once undisturbed, and once killed (SIGKILL to every process, or SIGTERM to
the controller) at a random update and resumed. Model, optimizer, moving average and every logged loss must be equal to
the last bit. A third kind of case resumes on another number of ranks and compares samples and losses.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from gradwire.checkpoint import Checkpointer

GRADWIRE = [str(Path(sys.executable).parent / "gradwire")]
UPDATES = 24
MODELS = {
    "decoder": [
        "model=decoder_1m",
        "model.width=64",
        "model.layers=2",
        "model.heads=2",
        "model.kv_heads=1",
        "model.dropout=0.1",
        "data.context=32",
        "evaluation.limit=64",
        "evaluation.samples=0",
    ],
    "convnet": ["experiment=digits", "model.dropout=0.1", "evaluation.samples=0"],
}
COMMON = [
    f"run.length={UPDATES} updates",
    "run.log_every=1",
    "evaluation.every=8 updates",
    "evaluation.batch=16",
    "checkpoint.every=5 updates",
    "checkpoint.keep=100",
    "batch.size=24",
    "ema=0.9",
    "optimizer.lr=0.003",
    "logger=none",
    "launch.device=cpu",
]


@dataclass(frozen=True)
class Case:
    """One kind of run and one way to interrupt it."""

    model: str
    precision: str
    ranks: int
    accumulation: int
    how: str  # SIGKILL or SIGTERM

    def overrides(self) -> list[str]:
        share = -(-24 // self.ranks)
        return [
            *COMMON,
            *MODELS[self.model],
            f"precision={self.precision}",
            f"launch.processes={self.ranks}",
            f"batch.micro={-(-share // self.accumulation)}",
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.precision} ranks={self.ranks} accumulation={self.accumulation} {self.how}"


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def train(folder: Path, overrides: list[str]) -> subprocess.Popen[str]:
    """Start `gradwire train` in the background."""
    command = [*GRADWIRE, "train", f"run.dir={folder}", *overrides]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], expected: int = 0) -> str:
    """Wait for the end of a run; its output."""
    output, _ = process.communicate(timeout=300)
    if process.returncode != expected:
        raise RuntimeError(f"exit code {process.returncode} where {expected} was expected:\n{output}")
    return output


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The whole lines of a metrics file."""
    path = folder / name
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def interrupt(process: subprocess.Popen[str], folder: Path, update: int, how: str) -> None:
    """Wait until `update` is logged, then kill every process of the run, or ask the controller to stop."""
    deadline = time.monotonic() + 120
    while not any(line["update"] >= update for line in lines(folder)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the run ended before update {update}:\n{process.communicate()[0]}")
        time.sleep(0.005)
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
        finish(process, expected=75)
        return
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=30)
    process.communicate()


def resume(folder: Path, *overrides: str) -> str:
    """`gradwire resume`, to the end."""
    command = [*GRADWIRE, "resume", str(folder), *overrides]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return finish(process)


def final_state(folder: Path) -> dict[str, Any]:
    """The shared state of a run's last snapshot."""
    state, _ = Checkpointer(str(folder / "checkpoints")).restore("latest")
    return dict(state.shared)


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Paths at which two trees differ in any bit."""
    if isinstance(left, dict) and isinstance(right, dict):
        keys = left.keys() | right.keys()
        return [d for key in sorted(keys) for d in differences(left.get(key), right.get(key), f"{path}/{key}")]
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape
        return (
            []
            if same and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
            else [path]
        )
    return [] if left == right else [f"{path}: {left!r} against {right!r}"]


def losses(folder: Path) -> dict[tuple[int, str], float]:
    """Every logged loss by update and name."""
    return {
        (line["update"], key): value
        for line in lines(folder)
        for key, value in line.items()
        if key in ("train/loss", "eval/loss", "eval/accuracy", "lr", "batch_size", "samples", "grad_norm")
    }


class Campaign:
    """Runs cases; undisturbed runs are kept, since several cases compare with the same one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self._undisturbed: dict[str, Path] = {}

    def undisturbed(self, case: Case) -> Path:
        key = " ".join(case.overrides())
        if key not in self._undisturbed:
            folder = self.folder / f"undisturbed-{len(self._undisturbed)}"
            finish(train(folder, case.overrides()))
            self._undisturbed[key] = folder
        return self._undisturbed[key]

    def run(self, case: Case) -> tuple[int, list[str]]:
        """The update at which the run was interrupted, and every difference from the undisturbed run."""
        reference = self.undisturbed(case)
        folder = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        update = self.random.randrange(6, UPDATES - 2)
        interrupt(train(folder, case.overrides()), folder, update, case.how)
        resume(folder)
        found = differences(final_state(reference), final_state(folder))
        found += differences(losses(reference), losses(folder)) if losses(reference) != losses(folder) else []
        shutil.rmtree(folder.parent)
        return update, found


def all_cases() -> list[Case]:
    return [
        Case(*choice)
        for choice in itertools.product(MODELS, ("fp32", "bf16"), (1, 2, 4), (1, 3), ("SIGKILL", "SIGTERM"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="run the cases whose name holds this text")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), arguments.seed)
        for case in all_cases():
            if arguments.only not in str(case):
                continue
            update, found = campaign.run(case)
            results.append({"case": str(case), "update": update, "differences": found})
            print(
                f"{'same bits' if not found else 'DIFFERENT':10} {case}, interrupted at {update} {found[:3]}",
                flush=True,
            )
    equal = sum(not result["differences"] for result in results)
    print(f"{equal} of {len(results)} interrupted runs ended in the bits of the undisturbed run")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.exit(equal != len(results))


if __name__ == "__main__":
    main()
