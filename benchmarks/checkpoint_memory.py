"""Memory and speed of large states: peak memory of saving and restoring, and restoring against the disk's own speed.

    python -m benchmarks.checkpoint_memory [--gb 6] [--stage copy,none] [--json FILE] [--folder DIR]

Every step is a process of its own on a real disk: one holds a state of so many GB of random float32 numbers and saves
it, as a copy beside training (`stage: copy`) or as it is (`stage: none`); one restores it. The peak of memory (VmHWM,
which is reset before the step) is told beyond the state, and beyond its one staged copy where there is one. Where the
disk's cache may be dropped (root), what is restored comes from the disk, and another process reads the same files and
does nothing else, before and after.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.benchmark import can_drop, drop
from gradwire.checkpoint.benchmark.page_cache import read_seconds
from gradwire.trainer.host_memory import resident_peak

ROOT = Path(__file__).parents[1]
TENSOR = 64 * 2**20  # bytes


def state_of(nbytes: int) -> dict[str, Tensor]:
    """Weights and moments, as they are in a training: normal, and squares."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for index in range(nbytes // TENSOR):
        values = torch.randn(TENSOR // 4, generator=generator).mul_(0.02)
        tensors[f"tensor.{index}"] = values.square_() if index % 3 == 2 else values
    return tensors


def save(folder: Path, gb: float, stage: str) -> dict[str, Any]:
    """Save a state; what it took."""
    tensors = state_of(round(gb * 1e9))
    state = sum(tensor.nbytes for tensor in tensors.values())
    resident_peak()
    before = resident_peak()
    started = time.perf_counter()
    with Checkpointer(folder, stage="none" if stage == "none" else "copy") as checkpointer:
        saving = checkpointer.start(State({"model": tensors}), {"updates": 1})
        stall = time.perf_counter() - started
        saving.wait()
    durable = time.perf_counter() - started
    beyond = resident_peak() - before - (state if stage == "copy" else 0)
    return {"state": state, "before": before, "beyond": beyond, "stall": stall, "durable": durable}


def restore(folder: Path, gb: float, stage: str) -> dict[str, Any]:
    """Restore it; what it took."""
    resident_peak()
    before = resident_peak()
    started = time.perf_counter()
    state, _ = Checkpointer(folder).restore()
    seconds = time.perf_counter() - started
    peak = resident_peak()
    tensors = state.shared["model"]
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    right = all(torch.equal(tensors[name], tensor) for name, tensor in state_of(TENSOR * 3).items())
    return {"state": nbytes, "before": before, "beyond": peak - before - nbytes, "seconds": seconds, "right": right}


def read(folder: Path, gb: float, stage: str) -> dict[str, Any]:
    """Read its packs and nothing else."""
    seconds, nbytes = read_seconds(sorted((folder / "packs").iterdir()))
    return {"seconds": seconds, "bytes": nbytes}


STEPS: dict[str, Callable[[Path, float, str], dict[str, Any]]] = {"save": save, "restore": restore, "read": read}


def fresh(step: str, folder: Path, gb: float, stage: str, *, cold: bool) -> dict[str, Any]:
    """A step in a process of its own."""
    if cold:
        drop(folder)
    command = [sys.executable, "-m", "benchmarks.checkpoint_memory", "--step", step, "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--gb", str(gb), "--stage", stage], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(parent: Path, gb: float, stage: str, rounds: int) -> dict[str, Any]:
    """All steps of a stage."""
    folder, cold = Path(tempfile.mkdtemp(prefix="memory-", dir=parent)), can_drop()
    try:
        saved = fresh("save", folder, gb, stage, cold=False)
        reads, restores = [], []
        for _ in range(rounds if stage == "copy" else 1):
            reads.append(fresh("read", folder, gb, stage, cold=cold))
            restores.append(fresh("restore", folder, gb, stage, cold=cold))
    finally:
        shutil.rmtree(folder)
    return {"stage": stage, "cold": cold, "save": saved, "reads": reads, "restores": restores}


def tell(found: dict[str, Any]) -> None:
    """Print it."""
    saved, beside = found["save"], " and its copy" * (found["stage"] == "copy")
    print(
        f"stage {found['stage']}: {saved['state'] / 1e9:.2f} GB; saving took {saved['beyond'] / 1e9:+.2f} GB beyond "
        f"the state{beside}, held training for {saved['stall']:.1f} s, was durable after {saved['durable']:.1f} s"
    )
    for read_, restored in zip(found["reads"], found["restores"], strict=True):
        disk, speed = read_["bytes"] / read_["seconds"], restored["state"] / restored["seconds"]
        print(
            f"  restoring took {restored['beyond'] / 1e9:+.2f} GB beyond the state, {restored['seconds']:.1f} s: "
            f"{speed / 1e6:.0f} MB/s, {speed / disk:.2f} of the {disk / 1e6:.0f} MB/s at which its files are read"
            f"{'' if found['cold'] else ' (from the cache)'}{'' if restored['right'] else '; WRONG'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=6.0)
    parser.add_argument("--stage", default="copy,none")
    parser.add_argument("--rounds", type=int, default=3, help="of restoring what was saved with a copy")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where to write")
    parser.add_argument("--json")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(STEPS[arguments.step](arguments.folder, arguments.gb, arguments.stage)))
        return
    results = []
    for stage in arguments.stage.split(","):
        results.append(measure(arguments.folder, arguments.gb, stage, arguments.rounds))
        tell(results[-1])
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
