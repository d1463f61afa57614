"""Two runs compared: their last snapshots tensor by tensor, and what they logged."""

import math
from pathlib import Path
from typing import Any

import torch

from benchmarks.runs import lines
from gradwire.checkpoint import Checkpointer

TOLERANCE = 1e-5  # relative, of the losses of a run on another number of ranks


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
        alike = left.dtype == right.dtype and left.shape == right.shape
        return [] if alike and torch.equal(_bits(left), _bits(right)) else [path]
    return [] if left == right else [f"{path}: {left!r} against {right!r}"]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def losses(folder: Path) -> dict[tuple[int, str], float]:
    """What is compared of a log, by update and name: losses, and what the plan and the data gave."""
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
