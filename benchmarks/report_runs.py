"""Folders of runs that no trainer wrote, for reports on them."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_run(folder: Path, records: list[Record], name: str = "a run") -> Path:
    """A run's folder with these lines of metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps({"run": {"name": name}, "optimizer": {"lr": 0.01}}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def records(count: int, seed: int = 0, every: int = 1) -> Iterator[Record]:
    """What a long run on two links might have measured."""
    chance, now = random.Random(seed), 1.8e9
    for update in range(every, count * every + 1, every):
        now += 0.2 * chance.random()
        progress = update / (count * every)
        record = {
            "update": update,
            "samples": 16 * update,
            "tokens": 2048 * update,
            "train/loss": 2 + 3 * math.exp(-5 * progress) + chance.gauss(0, 0.1),
            "lr": 1e-3 * (1 - progress),
            "batch_size": 16,
            "grad_norm": chance.random(),
            "tokens_per_second": 8e4 * chance.random(),
            "time/update_ms": 100 + chance.random(),
            "time/data_ms": chance.random(),
            "time/checkpoint_ms": chance.random(),
            "comm/exposed_ms": chance.random(),
            "noise_scale": 1000 * chance.random(),
            "gradient_variance": chance.random(),
            "gradient_squared": chance.random(),
            "time/unix": round(now, 3),
        }
        for axis in ("local", "node"):
            kinds = ("bytes", "uncompressed_bytes", "wait_ms", "encode_ms", "decode_ms", "error")
            record |= {f"comm/{axis}/{kind}": chance.random() for kind in kinds}
        if update % max(count * every // 100, 1) == 0:
            record |= {"eval/loss": 2.1 + 3 * math.exp(-5 * progress), "eval/sample": f"sampled at {update}"}
        yield record
