"""How long until something happens: `gradwire --help`, and from the command to the first update, against a bare script.

    python benchmarks/startup.py [--json FILE] [--rounds N]

Both trainings use two processes on the CPU and the same decoder; torchrun starts the bare script. Rounds alternate.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
BARE = """
import sys, pathlib, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from gradwire.trainer.data import PythonSource
from gradwire.trainer.models import Decoder
dist.init_process_group("gloo")
data = PythonSource(context=128).train
model = DistributedDataParallel(Decoder(context=128, width=160, layers=4, heads=5, kv_heads=5))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = torch.utils.data.default_collate([data[k] for k in range(8)])
loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
pathlib.Path(sys.argv[1]).write_text("done")
dist.destroy_process_group()
"""


def until(path: Path, command: list[str]) -> float:
    """Seconds from starting a command until a file has content; the command is then left to end."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (path.exists() and path.stat().st_size):
        if process.poll() not in (None, 0):
            sys.exit(f"{command} failed")
        time.sleep(0.005)
    seconds = time.perf_counter() - start
    process.wait()
    return seconds


def bare(folder: Path) -> float:
    script, done = folder / "bare.py", folder / "done"
    script.write_text(BARE)
    return until(done, [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2", str(script), str(done)])


def gradwire(folder: Path) -> float:
    run = folder / "run"
    overrides = [
        "run.length=2 updates",
        "run.log_every=1",
        "evaluation.every=null",
        "logger=none",
        "launch.processes=2",
    ]
    return until(run / "metrics.jsonl", [str(BIN / "gradwire"), "train", f"run.dir={run}", *overrides])


def answer() -> float:
    start = time.perf_counter()
    subprocess.run([str(BIN / "gradwire"), "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    seconds: dict[str, list[float]] = {"help": [], "bare": [], "gradwire": []}
    for _ in range(arguments.rounds):
        seconds["help"].append(answer())
        for name, measure in (("bare", bare), ("gradwire", gradwire)):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(measure(Path(folder)))
    median: dict[str, Any] = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"gradwire --help            {median['help']:6.2f} s")
    print(f"first update, bare script  {median['bare']:6.2f} s")
    print(f"first update, gradwire     {median['gradwire']:6.2f} s   {median['gradwire'] / median['bare']:.2f} x")
    if arguments.json:
        arguments.json.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    main()
