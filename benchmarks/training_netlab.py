"""Training over slow links: gradwire against DDP, with torch's hooks and without, to the same validation loss.

    python -m benchmarks.training_netlab [--seeds 3] [--updates 80] [--contenders ddp,gradwire/int8,…] [--json FILE]
    python -m benchmarks.training_netlab --overlap [--contenders gradwire/int8]

Needs root (see benchmarks/netlab.py). Every contender trains the same byte-level decoder on the standard library's
source with the same initial weights, data order and learning rates, on two hosts with two ranks each. The floor is the
same loop without communication. What a contender waits for is its update's time less the floor's. The target is the
validation loss that plain DDP ends with; contenders but DDP may train somewhat longer to reach it. Times leave out
evaluation, and what is compiled before the first update.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.netlab import Netlab, NetlabError
from benchmarks.netlab_ranks import Ranks
from benchmarks.training_contenders import Job, Run, contender, train
from benchmarks.training_overlap import show_overlap
from gradwire.comm import CommError
from gradwire.comm.benchmark import Shape, interval
from gradwire.comm.benchmark.contenders import Ours

CONTENDERS = "ddp,ddp/fp16,ddp/power_sgd,gradwire,gradwire/int8,gradwire/int4,gradwire/top_k,gradwire/power_sgd"
FLOOR_UPDATES = 20
SKIPPED = 3  # first updates, which make connections and buckets
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ranks is not None:
            self._ranks.stop()


@dataclass(frozen=True)
class Row:
    """A contender over all seeds. Times in seconds; bytes and processor time of an update."""

    update: float
    of_floor: tuple[float, float, float]
    waiting: float
    losses: list[float]
    difference: list[float]
    to_target: list[float | None]
    speedup: float | None
    sent: float
    processor: float


def merged(runs: Sequence[Run]) -> Run:
    """Of all ranks: the slowest's updates, processor time added up, the busiest host's bytes, rank 0's traffic."""
    slowest = [max(each) for each in zip(*(run.seconds for run in runs), strict=True)]
    processor, sent = sum(run.processor for run in runs), max(run.sent for run in runs)
    return Run(slowest, runs[0].losses, processor, sent, runs[0].traffic)


def time_to(target: float, run: Run) -> float | None:
    """Seconds of training until the validation loss first is the target, between evaluations by a straight line."""
    ends = [0.0]
    for seconds in run.seconds:
        ends.append(ends[-1] + seconds)
    before = run.losses[0]
    for update, loss in run.losses:
        if loss <= target:
            share = 1.0 if before[1] == loss else (before[1] - target) / (before[1] - loss)
            return ends[before[0]] + share * (ends[update] - ends[before[0]])
        before = update, loss
    return None


def row(runs: Sequence[Run], plain: Sequence[Run], floor: Run, updates: int) -> Row:
    """What a contender's runs, one for each seed, say beside plain DDP's."""
    steady = [seconds for run in runs for seconds in run.seconds[SKIPPED:]]
    base = statistics.median(floor.seconds[SKIPPED:])
    losses, plain_losses = ([dict(run.losses)[updates] for run in each] for each in (runs, plain))
    to_target = [time_to(loss, run) for loss, run in zip(plain_losses, runs, strict=True)]
    ratios = [
        sum(ddp.seconds[:updates]) / seconds
        for ddp, seconds in zip(plain, to_target, strict=True)
        if seconds is not None
    ]
    return Row(
        update=statistics.median(steady),
        of_floor=interval([seconds / base for seconds in steady]),
        waiting=1 - base / statistics.median(steady),
        losses=losses,
        difference=[loss / other - 1 for loss, other in zip(losses, plain_losses, strict=True)],
        to_target=to_target,
        speedup=statistics.median(ratios) if len(ratios) == len(runs) else None,
        sent=statistics.median(run.sent for run in runs),
        processor=statistics.median(run.processor for run in runs),
    )


def estimate(names: Sequence[str], job: Job, floor: Run, link: float, seeds: int) -> float:
    """Seconds that the campaign should take: compute, bytes on the link, and evaluation."""
    shape = Shape.of(job.topology())
    elements = sum(parameter.numel() for parameter in job.model().parameters())
    flat = 2 * (job.ranks - 1) / job.ranks * 4 * elements  # DDP's ring of all ranks crosses between hosts once each way
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
        evaluations = updates // job.every * job.validation * job.context / (4 * job.ranks * job.samples * job.context)
        total += seeds * (updates * (base + nbytes / link) + evaluations * base + 2 * base)
    return total


def show(rows: Mapping[str, Row], floor: Run, updates: int) -> None:
    """Print the table."""
    base = statistics.median(floor.seconds[SKIPPED:])
    print(f"\nthe floor: {base:.3f} s an update, {floor.processor:.2f} s of processor time on all ranks")
    print(
        f"  {'':20}{'s/update':>9}  {'× the floor [95 %]':>22}{'waits':>7}{f'loss at {updates}':>12}{'against ddp':>18}"
        f"{'s to target':>13}{'speed':>7}{'MB sent':>9}{'CPU s':>7}"
    )
    for name, each in rows.items():
        difference = f"{100 * statistics.mean(each.difference):+.2f} % ≤ {100 * max(each.difference):+.2f}"
        reached = [seconds for seconds in each.to_target if seconds is not None]
        target = f"{statistics.median(reached):.1f}" if len(reached) == len(each.to_target) else "not reached"
        speed = "-" if each.speedup is None else f"{each.speedup:.2f}×"
        print(
            f"  {name:20}{each.update:9.3f}  {'{:.3f} [{:.3f}, {:.3f}]'.format(*each.of_floor):>22}{each.waiting:7.0%}"
            f"{statistics.mean(each.losses):12.4f}{difference:>18}{target:>13}{speed:>7}"
            f"{each.sent / 1e6:9.2f}{each.processor - floor.processor:7.2f}"
        )
    if "ddp" in rows and rows["ddp"].waiting < 0.8:
        print("  plain DDP waits for less than 80 % of its update: choose fewer --samples or a slower --rate")


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
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument(
        "--every", type=int, default=10, help="updates between two evaluations; they divide the updates"
    )
    parser.add_argument("--samples", type=int, default=1, help="of a rank and update")
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
    shared = ("updates", "every", "hosts", "ranks_per_host", "width", "layers", "context", "samples")
    job = Job("ddp", 0, **{name: getattr(options, name) for name in shared})
    assert job.data().train and job.data().validation  # made here once, not by all ranks at once
    parameters = sum(parameter.numel() for parameter in job.model().parameters())
    print(
        f"{parameters:,} parameters, {options.hosts} hosts × {options.ranks_per_host} ranks, {options.rate}", flush=True
    )
    with Netlab(options.hosts, options.rate) as lab, Crew(lab, options.ranks_per_host) as crew:
        if options.overlap:
            results = show_overlap(crew, options.contenders or ("gradwire", "gradwire/int8"), job, options.rounds)
        else:
            names = tuple(dict.fromkeys(["ddp", *(options.contenders or CONTENDERS.split(","))]))
            assert lab.bytes_per_second is not None
            results = campaign(crew, names, job, options.seeds, lab.bytes_per_second)
    if options.json:
        options.json.write_text(json.dumps({"rate": options.rate, "parameters": parameters, **results}, indent=1))


if __name__ == "__main__":
    from benchmarks.training_netlab import main  # what ranks call must not lie in __main__

    main()
