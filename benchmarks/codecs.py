"""How fast codecs are on one thread, and what they save and cost: GB/s of float32 values, eager and compiled.

python benchmarks/codecs.py [--json results.json] [--codecs int8,int4] [--repeats 15]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gradwire.comm.codecs import Codec, Fp8, Int4, Int8, TopK, named

SIZES = tuple(1024 * kib for kib in (256, 1024, 4096, 16384))
WORK = ("encode", "encode + error", "decode", "decode + add")
CODECS: dict[str, Codec] = {
    **{name: named(name) for name in ("none", "fp16", "bf16", "fp8")},
    "fp8 e5m2": Fp8("e5m2"),
    "int8": Int8(),
    "int8 stochastic": Int8(rounding="stochastic"),
    "int4": Int4(),
    "int4 stochastic": Int4(rounding="stochastic"),
    "int4 hadamard": Int4(hadamard=True),
    "sign": named("sign"),
    "top_k exact": TopK(threshold="exact"),
    "top_k": TopK(),
    "random_k": named("random_k"),
}


def seconds(work: Callable[[], None], repeats: int) -> float:
    """The best of several: other processes only slow it down."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def speeds(codec: Codec, nbytes: int, repeats: int) -> dict[str, float]:
    """GB/s of float32 values for each kind of work on a segment."""
    values = torch.randn(nbytes // 4)
    payload = torch.empty(codec.nbytes(values.numel()), dtype=torch.uint8)
    error, out = torch.empty_like(values), torch.zeros_like(values)
    works = (
        lambda: codec.encode(values, payload),
        lambda: codec.encode(values, payload, error=error),
        lambda: codec.decode(payload, out),
        lambda: codec.decode_add(payload, out),
    )
    return {name: nbytes / seconds(work, repeats) / 1e9 for name, work in zip(WORK, works, strict=True)}


def figures(codec: Codec) -> dict[str, float]:
    """What is saved on the wire and lost of Gaussian values."""
    values = torch.randn(1 << 20)
    payload, out = torch.empty(codec.nbytes(values.numel()), dtype=torch.uint8), torch.empty_like(values)
    codec.encode(values, payload)
    codec.decode(payload, out)
    saved = 1 - payload.numel() / (4 * values.numel())
    return {"saved": saved, "relative error": float((out - values).norm() / values.norm())}


def measured(name: str, codec: Codec, repeats: int) -> dict[str, Any]:
    """A codec's figures, and its speeds before and after it is prepared."""
    row: dict[str, Any] = {"codec": name, **figures(codec)}
    row["eager"] = {str(nbytes): speeds(codec, nbytes, repeats) for nbytes in SIZES}
    start = time.perf_counter()
    codec.prepare("cpu")
    row["prepare seconds"] = time.perf_counter() - start
    row["compiled"] = {str(nbytes): speeds(codec, nbytes, repeats) for nbytes in SIZES}
    return row


def show(row: dict[str, Any]) -> None:
    print(
        f"\n{row['codec']}: {row['saved']:.2%} saved, relative error {row['relative error']:.4g}, "
        f"prepared in {row['prepare seconds']:.1f} s"
    )
    for way in ("eager", "compiled"):
        for nbytes, speed in row[way].items():
            cells = "".join(f"{speed[work]:16.2f}" for work in WORK)
            print(f"  {way:9} {int(nbytes) // 1024:6} KiB {cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--codecs", default=",".join(CODECS))
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("GB/s of float32 values, one thread, best of", arguments.repeats)
    print(" " * 21 + "".join(f"{work:>16}" for work in WORK))
    rows = []
    for name in arguments.codecs.split(","):
        rows.append(measured(name, CODECS[name], arguments.repeats))
        show(rows[-1])
    if arguments.json:
        machine = {"torch": torch.__version__, "processor": platform.processor() or platform.machine()}
        arguments.json.write_text(json.dumps({"machine": machine, "codecs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
