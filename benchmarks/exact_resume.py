"""Does a killed run end in the same bits? Real runs, killed at random updates, resumed and compared tensor by tensor.

    python benchmarks/exact_resume.py [--json FILE] [--seed N] [--only TEXT]

Each case trains twice from the command line: once undisturbed, and once killed (SIGKILL to every process, or SIGTERM to
the controller) at a random update and resumed. Model, optimizer, moving average and every logged loss must be equal to
the last bit. Further cases resume on another number of ranks: there the same samples must be seen in the same updates,
and in fp32, without dropout and batch norm, every loss must agree to 1e-5.
"""

import argparse
import itertools
import json
import math
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
MOVED_UPDATES = 50
TOLERANCE = 1e-5  # relative, of the losses of a run on another number of ranks
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
    "convnet": ["experiment=digits", "model.dropout=0.1", "evaluation.limit=64", "evaluation.samples=0"],
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
_LENGTH = "run.length=576 samples"
_GROWS = ["batch.granule=2", "batch.schedule.start=6", "noise_scale.every=2 updates", _LENGTH]
PLANS = {  # besides the constant batch: each changes batch size or learning rate while the run goes on
    "linear_warmup, sqrt": ["batch=linear_warmup", "batch.schedule.length=50%", "scaling=sqrt", _LENGTH],
    "doubling": ["batch=doubling", "batch.schedule.every=150 samples", *_GROWS],
    "seesaw": ["batch=seesaw", "lr=warmup_linear", *_GROWS],
    "grow_instead_of_decay": ["batch=grow_instead_of_decay", "lr=warmup_linear", *_GROWS],
    "critical, measured": ["batch=critical", *_GROWS],
    "noise_scale": ["batch=noise_scale", "batch.schedule.hysteresis=1.1", *_GROWS],
    "adascale": ["scaling=adascale", "scaling.reference=6", "noise_scale.every=2 updates", _LENGTH],
}

_CODECS = ("fp16", "bf16", "fp8", "int8", "int4", "sign", "top_k", "random_k", "power_sgd")
_HOSTS = "comm=hierarchical"
SAVED = "checkpoint/update"  # what a line of metrics.jsonl has once a snapshot is durable
COMMS = {  # how gradients travel, by name: every codec between two pretended hosts, and other topologies
    **{f"codec {name}": [_HOSTS, f"comm/codec@comm.codecs.node={name}"] for name in _CODECS},
    "codec int4, stochastic, rotated": [
        _HOSTS,
        "comm/codec@comm.codecs.node=int4",
        "comm.codecs.node.rounding=stochastic",
        "comm.codecs.node.hadamard=true",
    ],
    "codec int8 and int4 on both axes": [
        _HOSTS,
        "comm/codec@comm.codecs.local=int8",
        "comm/codec@comm.codecs.node=int4",
    ],
    "codec dgc, warming up": [
        _HOSTS,
        "comm/codec@comm.codecs.node=dgc",
        "comm.codecs.node.ratio=0.05",
        "comm.codecs.node.warmup=12",
    ],
    "codec top_k within hosts, int4 between": [
        _HOSTS,
        "comm/codec@comm.codecs.local=top_k",
        "comm/codec@comm.codecs.node=int4",
    ],
    "codec int4, one update late": [_HOSTS, "comm/codec@comm.codecs.node=int4", "comm.overlap=update"],
    "codec int4 on a ring, one update late": [
        "comm=ring",
        "comm/codec@comm.codecs.ring=int4",
        "comm.overlap=update",
    ],
    "one update late": ["comm=native", "comm.overlap=update"],
    "codec top_k on a ring": ["comm=ring", "comm/codec@comm.codecs.ring=top_k", "comm.codecs.ring.ratio=0.1"],
    "codec sign on a torus": ["comm=torus", "comm/codec@comm.codecs.y=sign"],
    "diloco": [_HOSTS, "strategy=diloco", "strategy.every=4", "ema=null"],
    "diloco, int4, streaming": [
        _HOSTS,
        "comm/codec@comm.codecs.node=int4",
        "strategy=diloco",
        "strategy.every=8",
        "strategy.fragments=2",
        "strategy.overlap=3",
        "ema=null",
    ],
    "ring": ["comm=ring"],
    "hierarchical": [_HOSTS],
    "torus": ["comm=torus"],
}


@dataclass(frozen=True)
class Case:
    """One kind of run and one way to interrupt it."""

    model: str
    precision: str
    ranks: int
    accumulation: int
    how: str  # SIGKILL or SIGTERM
    plan: str = ""
    comm: str = ""

    def overrides(self) -> list[str]:
        share = -(-24 // self.ranks)
        return [
            *COMMON,
            *MODELS[self.model],
            *PLANS.get(self.plan, []),
            *communication(self.comm, self.ranks),
            f"precision={self.precision}",
            f"launch.processes={self.ranks}",
            f"batch.micro={-(-share // self.accumulation)}",
        ]

    def __str__(self) -> str:
        kind = f"{self.model} {self.precision} ranks={self.ranks} accumulation={self.accumulation}"
        return " ".join(filter(None, [kind, self.plan, self.comm, self.how]))


def communication(comm: str, ranks: int) -> list[str]:
    """The overrides of a case's `comm`, with as many ranks on two axes as there are."""
    chosen = COMMS.get(comm, [])
    axes = {"comm=hierarchical": ("local", "node"), "comm=torus": ("x", "y")}.get(chosen[0]) if chosen else None
    return [*chosen, f"comm.topology={{{axes[0]}: 2, {axes[1]}: {ranks // 2}}}"] if axes else chosen


@dataclass(frozen=True)
class Move:
    """A run that goes on with another number of ranks than it began with."""

    before: int
    after: int

    def overrides(self) -> list[str]:
        plain = Case("decoder", "fp32", self.before, 1, "SIGTERM").overrides()
        return [*plain, "model.dropout=0.0", f"run.length={MOVED_UPDATES} updates"]

    def __str__(self) -> str:
        return f"decoder fp32 ranks={self.before} then ranks={self.after}"


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


def interrupt(process: subprocess.Popen[str], folder: Path, update: int, how: str, *, saved: bool = False) -> None:
    """Wait until `update` is logged, then kill every process of the run, or ask the controller to stop.

    With `saved` not before a snapshot is durable: they are written beside training.
    """
    deadline = time.monotonic() + 120
    while not any(line["update"] >= update and (not saved or SAVED in line) for line in lines(folder)):
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


def final_state(folder: Path, url: str | None = None) -> dict[str, Any]:
    """A run's last snapshot, from its folder or a URL: what all ranks share, and what each has of its own."""
    shared, own, _ = Checkpointer(url or str(folder / "checkpoints")).restore_resized("latest")
    return shared | {"own": dict(enumerate(own))}


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Paths at which two trees differ in any bit."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return differences(dict(enumerate(left)), dict(enumerate(right)), path)
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


def disagreements(left: Path, right: Path) -> list[str]:
    """What two runs logged differently: losses by more than rounding, everything else at all."""
    ours, theirs = losses(left), losses(right)
    found = [f"{key} only once" for key in sorted(ours.keys() ^ theirs.keys())]
    for (update, name), value in ours.items():
        other = theirs.get((update, name), value)
        tolerance = 0.0 if name in ("samples", "lr", "batch_size") else TOLERANCE
        if not math.isclose(value, other, rel_tol=tolerance):
            found.append(f"update {update}: {name} {value!r} against {other!r}")
    return found


class Campaign:
    """Runs cases; undisturbed runs are kept, since several cases compare with the same one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self._undisturbed: dict[str, Path] = {}

    def undisturbed(self, case: Case | Move) -> Path:
        key = " ".join(case.overrides())
        if key not in self._undisturbed:
            folder = self.folder / f"undisturbed-{len(self._undisturbed)}"
            finish(train(folder, case.overrides()))
            self._undisturbed[key] = folder
        return self._undisturbed[key]

    def run(self, case: Case | Move) -> tuple[int, list[str]]:
        """The update at which a run was interrupted, and every difference from the undisturbed run."""
        last = MOVED_UPDATES // 2 if isinstance(case, Move) else UPDATES - 2
        update = random.Random(f"{self.seed}, {case}").randrange(6, last)
        folder = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        try:
            if isinstance(case, Move):
                return update, self._moved(case, folder, update)
            return update, self._resumed(case, folder, update)
        except RuntimeError as error:
            return update, [str(error)]
        finally:
            shutil.rmtree(folder.parent)

    def _resumed(self, case: Case, folder: Path, update: int) -> list[str]:
        reference = self.undisturbed(case)
        interrupt(train(folder, case.overrides()), folder, update, case.how, saved=case.how == "SIGKILL")
        resume(folder)
        found = differences(final_state(reference), final_state(folder))
        return found + (differences(losses(reference), losses(folder)) if losses(reference) != losses(folder) else [])

    def _moved(self, case: Move, folder: Path, update: int) -> list[str]:
        reference = self.undisturbed(case)
        interrupt(train(folder, case.overrides()), folder, update, "SIGTERM")
        resume(folder, f"launch.processes={case.after}", f"batch.micro={-(-24 // case.after)}")
        return disagreements(reference, folder)


def all_cases() -> list[Case | Move]:
    choices = itertools.product(MODELS, ("fp32", "bf16"), (1, 2, 4), (1, 3), ("SIGKILL", "SIGTERM"))
    moves = [Move(1, 3), Move(2, 1), Move(2, 4), Move(3, 2), Move(4, 1)]
    plans = [Case("decoder", "fp32", ranks, 6, "SIGKILL", plan) for plan in PLANS for ranks in (1, 2)]
    comms = [Case("decoder", "fp32", 4, 1, how, comm=comm) for comm in COMMS for how in ("SIGKILL", "SIGTERM")]
    scaled = [Case("decoder", "fp16", 4, 3, "SIGKILL", comm=f"codec {name}") for name in ("int4", "top_k")]
    return [*(Case(*choice) for choice in choices), *plans, *comms, *scaled, *moves]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only",
        default="",
        help="run the cases whose name holds one of these texts; a semicolon between them",
    )
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), arguments.seed)
        for case in all_cases():
            if not any(text in str(case) for text in arguments.only.split(";")):
                continue
            moved = isinstance(case, Move)
            update, found = campaign.run(case)
            results.append({"case": str(case), "moved": moved, "update": update, "differences": found})
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))
            verdict = "DIFFERENT" if found else f"to {TOLERANCE}" if moved else "same bits"
            print(f"{verdict:10} {case}, interrupted at {update} {found[:3]}", flush=True)
    for moved, claim in ((False, "ended in the bits of"), (True, f"agreed to {TOLERANCE} with")):
        verdicts = [not result["differences"] for result in results if result["moved"] == moved]
        print(f"{sum(verdicts)} of {len(verdicts)} interrupted runs {claim} the undisturbed run")
    sys.exit(any(result["differences"] for result in results))


if __name__ == "__main__":
    main()
