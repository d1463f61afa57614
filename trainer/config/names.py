"""The nearest right name for a wrong one."""

import difflib
from collections.abc import Iterable

# What other trainers call our keys.
_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "max_lr": "optimizer.lr",
    "lr": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "bs": "batch.size",
    "global_batch_size": "batch.size",
    "train_batch_size": "batch.size",
    "per_device_train_batch_size": "batch.micro",
    "micro_batch_size": "batch.micro",
    "epochs": "run.length",
    "num_epochs": "run.length",
    "max_epochs": "run.length",
    "num_train_epochs": "run.length",
    "steps": "run.length",
    "max_steps": "run.length",
    "num_workers": "data.workers",
    "context": "data.context",
    "seq_len": "data.context",
    "sequence_length": "data.context",
    "block_size": "data.context",
    "max_grad_norm": "clip",
    "grad_clip": "clip",
    "gradient_clip_val": "clip",
    "gradient_checkpointing": "activation_checkpointing",
    "world_size": "launch.processes",
    "nproc_per_node": "launch.processes",
    "num_processes": "launch.processes",
    "gpus": "launch.processes",
    "devices": "launch.processes",
    "nnodes": "launch.hosts",
    "num_nodes": "launch.hosts",
    "accelerator": "launch.device",
    "output_dir": "run.dir",
    "out_dir": "run.dir",
    "save_steps": "checkpoint.every",
    "eval_steps": "evaluation.every",
    "eval_interval": "evaluation.every",
}
_CLOSE = 0.6  # difflib's ratio from which two names count as near


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, or None where none is near."""
    by_form = {_form(candidate): candidate for candidate in candidates}
    found = difflib.get_close_matches(_form(name), by_form, n=1, cutoff=_CLOSE)
    return by_form[found[0]] if found else None


def nearest_key(key: str, siblings: Iterable[str], known: Iterable[str]) -> str | None:
    """The right key for a wrong dotted one.

    Args:
        key: The wrong key, dotted from the root.
        siblings: Names that are right in the section where the wrong one stands.
        known: All keys of the configuration, dotted from the root.
    """
    parent, _, name = key.rpartition(".")
    every = sorted(set(known) - {parent})
    beside = {*siblings, *(path.rpartition(".")[2] for path in every if path.rpartition(".")[0] == parent)}
    scored = [(_likeness(name, sibling), 1, _join(parent, sibling)) for sibling in sorted(beside)]
    scored += [(_likeness(key, path), 0, path) for path in every if path.rpartition(".")[0] != parent]
    scored += [(0.8, 0, path) for path in every if path.rpartition(".")[2] == name]
    elsewhere = _ELSEWHERE.get(name.lower())
    if elsewhere in every:
        scored.append((0.85, 0, elsewhere or ""))
    best = max(scored, default=(0.0, 0, ""))
    return best[2] if best[0] >= _CLOSE else None


def _likeness(left: str, right: str) -> float:
    return difflib.SequenceMatcher(None, _form(left), _form(right)).ratio()


def _form(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
