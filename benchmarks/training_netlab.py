"""Training over slow links: gradwire against DDP, with torch's hooks and without, to the same validation loss.

    python -m benchmarks.training_netlab [--seeds 3] [--updates 60] [--contenders ddp,gradwire/int8,…] [--json FILE]
    python -m benchmarks.training_netlab --overlap [--contenders gradwire/int8]

Needs root (see benchmarks/netlab.py). Every contender trains the same byte-level decoder on the standard library's
source with the same initial weights, data order and learning rates, on two hosts with two ranks each. The micro-batch
is the largest with which plain DDP's bytes keep it waiting for 80 % of its update. The floor is the same loop without
communication. What a contender waits for is its update's time less the floor's. The target is the
validation loss that plain DDP ends with; contenders but DDP may train somewhat longer to reach it. Times leave out
evaluation, and what is compiled before the first update.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.netlab import Netlab, NetlabError
from benchmarks.netlab_ranks import Ranks
from benchmarks.training_contenders import contender, train
from benchmarks.training_job import Job, Run
from benchmarks.training_overlap import show_overlap
from benchmarks.training_rows import SKIPPED, WAITS, merged, row, show
from gradwire.comm import CommError
from gradwire.comm.benchmark import Shape
from gradwire.comm.benchmark.contenders import Ours

CONTENDERS = "ddp,ddp/fp16,ddp/power_sgd,gradwire/int8,gradwire/int4,gradwire/top_k,gradwire/power_sgd"
FLOOR_UPDATES = 12
MOST_SAMPLES = 32
LONGER = 1.25  # how much longer than DDP others may train
PATIENCE = 1200  # seconds that a run may take


class Crew(AbstractContextManager["Crew"]):
    """Ranks in a laboratory, started again after a run that broke."""

    def __init__(self, lab: Netlab, ranks_per_host: int) -> None:
        self._lab, self._ranks_per_host = lab, ranks_per_host
        self._ranks: Ranks | None = None

    def __call__(self, function: Any, *arguments: Any) -> list[Any]:
        """See `Ranks`."""
        if self._ranks is None or not self._ranks.alive:
            self._ranks = self._lab.ranks(self._ranks_per_host, timeout=PATIENCE)
        return self._ranks(function, *arguments)

    def renew(self) -> None:
        """End the processes; the next call starts new ones, without what the last left."""
        if self._ranks is not None:
            self._ranks.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.renew()


def flat_bytes(job: Job) -> float:
    """What plain DDP sends from host to host in an update: its ring of all ranks crosses between them once each way."""
    return 2 * (job.ranks - 1) / job.ranks * 4 * job.parameters


def with_samples(crew: Crew, job: Job, link: float) -> Job:
    """With the largest micro-batch whose update without communication takes a fifth of what plain DDP's bytes take."""
    few, more = 1, 4
    seconds = {}
    for samples in (few, more):
        floor = replace(job, contender="floor", samples=samples, updates=FLOOR_UPDATES, every=0)
        seconds[samples] = statistics.median(merged(crew(train, floor)).seconds[SKIPPED:])
    allowed = (1 - WAITS) * flat_bytes(job) / link
    slope = max((seconds[more] - seconds[few]) / (more - few), 1e-6)
    samples = max(1, min(MOST_SAMPLES, int(few + (allowed - seconds[few]) / slope)))
    print(f"{samples} samples a rank and update, of {job.context} bytes", flush=True)
    return replace(job, samples=samples)


def estimate(names: Sequence[str], job: Job, floor: Run, link: float, seeds: int) -> float:
    """Seconds that the campaign should take: compute, bytes on the link, and evaluation."""
    shape = Shape.of(job.topology())
    elements, flat = job.parameters, flat_bytes(job)
    sent = {"ddp": flat, "ddp/fp16": flat / 2, "ddp/power_sgd": flat / 10}
    base = statistics.median(floor.seconds)
    total = 0.0
    for name in names:
        updates = job.updates if name == "ddp" else round(job.updates * LONGER)
        try:
            nbytes = (
                sent[name]
                if name in sent
                else Ours(name, "", name.partition("/")[2] or None, None, False).payload(shape, elements)
            )
        except CommError:
            nbytes = 0
        evaluations = updates // job.every * job.validation / (3 * job.ranks * job.samples)
        total += seeds * (updates * (base + nbytes / link) + evaluations * base + 2 * base)
    return total


def campaign(crew: Crew, names: Sequence[str], job: Job, seeds: int, link: float) -> dict[str, Any]:
    """Train everything; in every second seed in reversed order."""
    floor = merged(crew(train, replace(job, contender="floor", updates=FLOOR_UPDATES, every=0)))
    seconds = estimate(names, job, floor, link, seeds)
    print(
        f"about {seconds / 60:.0f} minutes for {len(names)} contenders, {job.updates} updates, {seeds} seeds",
        flush=True,
    )
    runs: dict[str, list[Run]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for seed in range(seeds):
        for name in names if seed % 2 == 0 else reversed(names):
            if name in failed:
                continue
            updates = job.updates if name == "ddp" else -(-round(job.updates * LONGER) // job.every) * job.every
            try:
                runs[name].append(merged(crew(train, replace(job, contender=name, seed=seed, updates=updates))))
            except NetlabError as error:
                failed[name] = str(error)
                print(f"  {name} failed: {str(error).strip().splitlines()[-1]}", flush=True)
                continue
            last = runs[name][-1]
            print(f"  seed {seed} {name:20}{statistics.median(last.seconds):8.3f} s an update", flush=True)
    rows = {name: row(runs[name], runs["ddp"], floor, job.updates) for name in names if name not in failed}
    show(rows, floor, job.updates)
    return {
        "job": asdict(job),
        "rows": {name: asdict(each) for name, each in rows.items()},
        "floor": asdict(floor),
        "runs": {name: [asdict(run) for run in each] for name, each in runs.items()},
        "failed": failed,
    }


def _names(text: str) -> tuple[str, ...]:
    try:
        return tuple(name for name in text.split(",") if contender(name))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rate", default="200mbit", help="of each host's link")
    parser.add_argument("--contenders", type=_names, help="ddp, which the others are compared with, is always there")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument(
        "--every", type=int, default=10, help="updates between two evaluations; they divide the updates"
    )
    parser.add_argument("--samples", type=int, help="of a rank and update; chosen if not given")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--overlap", action="store_true", help="measure how much of the waiting hides behind compute")
    parser.add_argument("--rounds", type=int, default=12, help="of --overlap")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.updates % options.every or options.updates < options.every:
        parser.error("--every must divide --updates")
    if reason := Netlab.requirements():
        parser.exit(1, f"no laboratory: {reason}\n")
    shared = ("updates", "every", "hosts", "ranks_per_host", "width", "layers", "context")
    job = Job("ddp", 0, **{name: getattr(options, name) for name in shared}, samples=options.samples or 1)
    assert job.data().train and job.data().validation  # made here once, not by all ranks at once
    parameters = sum(parameter.numel() for parameter in job.model().parameters())
    print(
        f"{parameters:,} parameters, {options.hosts} hosts × {options.ranks_per_host} ranks, {options.rate}", flush=True
    )
    with Netlab(options.hosts, options.rate) as lab, Crew(lab, options.ranks_per_host) as crew:
        assert lab.bytes_per_second is not None
        if options.samples is None and not options.overlap:
            job = with_samples(crew, job, lab.bytes_per_second)
        if options.overlap:
            results = show_overlap(crew, options.contenders or ("gradwire", "gradwire/int8"), job, options.rounds)
        else:
            names = tuple(dict.fromkeys(["ddp", *(options.contenders or CONTENDERS.split(","))]))
            results = campaign(crew, names, job, options.seeds, lab.bytes_per_second)
    if options.json:
        options.json.write_text(json.dumps({"rate": options.rate, "parameters": job.parameters, **results}, indent=1))


if __name__ == "__main__":
    from benchmarks.training_netlab import main  # what ranks call must not lie in __main__

    main()
