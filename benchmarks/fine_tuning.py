"""What an adapter saves: bytes on the wire, in the journal and in snapshots, against training the whole model.

    python -m benchmarks.fine_tuning [--updates N] [--rank R] [--json FILE]

A Llama of 10.4 million parameters (transformers, random weights) is trained on conversations twice, from the command
line on two ranks: whole, and with LoRA on all its linear layers. Bytes come from the runs' own metrics and stores. At
last the run with the adapter is exported, and transformers' logits are compared with those of the model as it trained.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml

from gradwire.checkpoint import load_weights
from gradwire.checkpoint.history import read_log
from gradwire.checkpoint.store import Store
from gradwire.trainer.assemble import build_model
from gradwire.trainer.checkpoint_export import export_to

GRADWIRE = str(Path(sys.executable).parent / "gradwire")
LLAMA = {
    "hidden_size": 384,
    "intermediate_size": 1152,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
SNAPSHOTS = 2  # updates between them


@dataclass(frozen=True)
class Bytes:
    """Of one run.

    Args:
        parameters: All there are.
        trained: Those that are trained.
        wire: That a rank sends in an update.
        journal: Of an update, of all ranks.
        first_snapshot: Of the first snapshot.
        snapshot: New in the store with each later one, on average.
    """

    parameters: int
    trained: int
    wire: float
    journal: float
    first_snapshot: int
    snapshot: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the campaign and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="gradwire-fine-tuning-") as folder:
        found = measure(Path(folder), asked.updates, asked.rank)
    print(to_text(found))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(folder: Path, updates: int, rank: int) -> dict[str, object]:
    """Train both ways in a folder and compare."""
    conversations(folder / "chats.jsonl", 200)
    adapter = ["adapter=lora", f"adapter.rank={rank}"]
    whole = train(folder, "whole", updates, [])
    low = train(folder, "lora", updates, adapter)
    return {
        "rank": rank,
        "whole": asdict(whole),
        "lora": asdict(low),
        "ratio": {name: getattr(low, name) / getattr(whole, name) for name in ("wire", "journal", "snapshot")},
        "largest_difference_of_logits": difference(folder / "lora", folder / "exported"),
    }


def conversations(path: Path, count: int) -> None:
    """Write sums as conversations."""
    sums = [(a, b) for a in range(10, 30) for b in range(10, 30)][:count]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is {a} + {b}?"},
                {"role": "assistant", "content": f"{a + b}."},
            ]
        }
        for a, b in sums
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")


def train(folder: Path, name: str, updates: int, more: Sequence[str]) -> Bytes:
    """A run on two ranks, and what it sent and stored."""
    fields = ", ".join(f"{key}: {str(value).lower()}" for key, value in LLAMA.items())
    command = [
        *(GRADWIRE, "train", "model=hf_causal_lm", f"model.config={{{fields}}}", "data=chat"),
        *("data.paths=[chats.jsonl]", "data.context=64", "batch.size=4", f"run.length={updates} updates"),
        *("comm=ring", "checkpoint=journal", f"checkpoint.every={SNAPSHOTS} updates", "checkpoint.keep=100"),
        *("checkpoint.keep_journal=100", "run.log_every=1", "run.check_replicas=null", "evaluation.every=null"),
        *("noise_scale.every=null", "logger=none", "launch.processes=2", "launch.device=cpu", f"run.dir={name}", *more),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return bytes_of(folder / name)


def bytes_of(run: Path) -> Bytes:
    """What a run sent and stored."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    model = build_model(config)
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    sent = [record["comm/ring/bytes"] for record in records if "comm/ring/bytes" in record]
    entries = read_log(Store.open(str(run / "checkpoints"))).entries
    added = [entry.added or 0 for entry in entries]
    journal = [path for path in (run / "checkpoints" / "journal").rglob("*") if path.is_file()]
    return Bytes(
        parameters=sum(size for size, _ in sizes),
        trained=sum(size for size, trains in sizes if trains),
        wire=sum(sent) / len(sent),
        journal=sum(path.stat().st_size for path in journal) / len(records),
        first_snapshot=added[0],
        snapshot=sum(added[1:]) / len(added[1:]),
    )


@torch.no_grad()
def difference(run: Path, target: Path) -> float:
    """The largest difference between the logits of the trained model and of its export in transformers."""
    from transformers import AutoModelForCausalLM

    store = str(run / "checkpoints")
    model = build_model(yaml.safe_load((run / "config.yaml").read_text())).eval()
    model.load_state_dict(load_weights(store)[0])
    ids_BT = torch.randint(0, 256, (2, 48), generator=torch.Generator().manual_seed(0))
    expected = model(ids_BT)
    export_to(store, None, run, target)
    exported = AutoModelForCausalLM.from_pretrained(target, local_files_only=True).eval()
    return (exported(input_ids=ids_BT).logits - expected).abs().max().item()


def to_text(found: Mapping[str, object]) -> str:
    """A table."""
    whole, low, ratio = found["whole"], found["lora"], found["ratio"]
    assert isinstance(whole, dict) and isinstance(low, dict) and isinstance(ratio, dict)
    lines = [f"{'':<32}{'whole model':>14}{'LoRA':>14}{'ratio':>9}"]
    for name in whole:
        part = f"{ratio[name]:.2%}" if name in ratio else f"{low[name] / whole[name]:.2%}"
        lines.append(f"{name.replace('_', ' '):<32}{whole[name]:>14,.0f}{low[name]:>14,.0f}{part:>9}")
    lines.append(f"largest difference of exported logits: {found['largest_difference_of_logits']:.2g}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
