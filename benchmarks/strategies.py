"""Whether strategies are interchangeable: the same losses, runs that move between them, and every feature under each.

    python -m benchmarks.strategies [--only moves,features] [--ranks 1,2,4] [--updates 50] [--json FILE]

`moves`: one decoder trains under every strategy at every number of ranks and is saved halfway; every one of these
snapshots is restored under every strategy at every number of ranks and trained to the end. Losses are compared with
those of plain data parallelism on one rank; where nothing moved, bit by bit with the run's own. `features`: what a
trainer can do beside, under every strategy, against plain data parallelism on as many ranks.
"""

import argparse
import importlib.util
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.strategy_runs import FEATURES, STRATEGIES, ZERO, Way, refused, spawned, train

WORLDS = (1, 2, 4)
TOLERANCE = 1e-5
COMPARED = ("train/loss", "batch_size", "grad_norm", "noise_scale", "eval/loss", "skipped")
Log = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Move:
    """A run that was saved under one way and went on under another.

    Args:
        start: How it was saved.
        resume: How it went on.
        apart: Largest relative difference of a later loss from the reference's.
        same_bits: Whether the later losses have the bits of the start's own run; None where ranks or strategy changed.
    """

    start: str
    resume: str
    apart: float
    same_bits: bool | None

    @property
    def holds(self) -> bool:
        return self.apart <= TOLERANCE and self.same_bits is not False


def strategies() -> tuple[str, ...]:
    """All of them; DeepSpeed's where it is installed."""
    return STRATEGIES if importlib.util.find_spec("deepspeed") is None else STRATEGIES + ZERO


def start_runs(rank: int, folder: str, ways: Sequence[Way], updates: int) -> None:
    """Train in each of these ways, saving halfway; rank 0 writes what was logged. On the ranks."""
    for way in ways:
        logged = train(way, f"{folder}/{_file(way)}", save_every=updates // 2, updates=updates)
        _write(rank, Path(folder) / f"{_file(way)}.json", logged)


def resume_runs(rank: int, folder: str, moves: Sequence[tuple[Way, Way]], updates: int) -> None:
    """Go on from the first way's snapshot in the second way. On the ranks, whose number is that of the second ways."""
    for start, resume in moves:
        logged = train(resume, f"{folder}/{_file(start)}", resume=updates // 2, updates=updates, save=False)
        _write(rank, Path(folder) / f"{_file(start)}-{_file(resume)}.json", logged)


def feature_runs(rank: int, folder: str, ways: Sequence[Way], features: Iterable[str], updates: int) -> None:
    """Train in each way with each feature. On the ranks."""
    for way, feature in product(ways, features):
        if refused(way.strategy, feature):
            continue
        logged = train(way, None, updates=updates, feature=feature)
        _write(rank, Path(folder) / f"{_file(way)}-{feature.replace(' ', '_')}.json", logged)


def judge(folder: Path, start: Way, resume: Way, reference: Way) -> Move:
    """How a move went."""
    went = read(folder / f"{_file(start)}-{_file(resume)}.json")
    own, expected = (read(folder / f"{_file(way)}.json") for way in (start, reference))
    same = None if start != resume else all(went[update]["train/loss"] == own[update]["train/loss"] for update in went)
    return Move(str(start), str(resume), apart(went, expected, ["train/loss"]), same)


def apart(found: Log, expected: Log, keys: Sequence[str] = COMPARED) -> float:
    """The largest relative difference of what both logs hold under these keys; infinite where one lacks something."""
    largest = 0.0
    for update, record in found.items():
        for key in keys:
            one, other = record.get(key), expected[update].get(key)
            if (one is None) != (other is None):
                return math.inf
            if one is not None and other is not None and one != other:
                largest = max(largest, abs(one - other) / max(abs(one), abs(other)))
    return largest if found else math.inf


def read(path: Path) -> Log:
    """What was logged, by update."""
    return {int(update): record for update, record in json.loads(path.read_text()).items()}


def _file(way: Way) -> str:
    return f"{way.strategy}-{way.ranks}"


def _write(rank: int, path: Path, logged: Log) -> None:
    if rank == 0:
        path.write_text(json.dumps(logged))


def moves(folder: Path, worlds: Sequence[int], updates: int) -> list[Move]:
    """Every start under every resume."""
    ways = [Way(strategy, ranks) for ranks in worlds for strategy in strategies()]
    for ranks in worlds:
        spawned(ranks, start_runs, str(folder), [way for way in ways if way.ranks == ranks], updates)
    for ranks in worlds:
        pairs = [(start, resume) for start in ways for resume in ways if resume.ranks == ranks]
        spawned(ranks, resume_runs, str(folder), pairs, updates)
    reference = ways[0]
    expected = read(folder / f"{_file(reference)}.json")
    for way in ways:
        distance = apart(read(folder / f"{_file(way)}.json"), expected, ["train/loss"])
        print(f"{way!s:24} from the start: {distance:.1e} from {reference}", flush=True)
    return [judge(folder, start, resume, reference) for start, resume in product(ways, ways)]


def features(folder: Path, ranks: int, updates: int) -> dict[str, dict[str, float | None]]:
    """By strategy and feature, how far what was logged is from plain data parallelism's; None where it is refused."""
    ways = [Way(strategy, ranks) for strategy in strategies()]
    spawned(ranks, feature_runs, str(folder), ways, list(FEATURES), updates)
    found: dict[str, dict[str, float | None]] = {}
    for way, feature in product(ways, FEATURES):
        if refused(way.strategy, feature):
            found.setdefault(way.strategy, {})[feature] = None
            continue
        paths = [folder / f"{_file(each)}-{feature.replace(' ', '_')}.json" for each in (way, ways[0])]
        found.setdefault(way.strategy, {})[feature] = apart(*map(read, paths))
    return found


def table_of_moves(found: Sequence[Move]) -> str:
    """Rows are how runs were saved, columns how they went on."""
    ways = list(dict.fromkeys(move.start for move in found))
    cells = {(move.start, move.resume): move for move in found}
    lines = [f"| saved by | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for start in ways:
        row = [cells[start, resume] for resume in ways]
        lines.append(f"| {start} | {' | '.join('bits' if move.same_bits else f'{move.apart:.0e}' for move in row)} |")
    return "\n".join(lines)


def table_of_features(found: Mapping[str, Mapping[str, float | None]]) -> str:
    """Rows are features, columns strategies."""
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    told = {feature: [_told(each[feature]) for each in found.values()] for feature in FEATURES}
    lines += [f"| {feature} | {' | '.join(row)} |" for feature, row in told.items()]
    return "\n".join(lines)


def _told(apart: float | None) -> str:
    if apart is None:
        return "refused"
    return "not measured" if math.isinf(apart) else f"{apart:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="moves,features")
    parser.add_argument("--ranks", default=",".join(map(str, WORLDS)))
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    worlds, results = [int(each) for each in options.ranks.split(",")], {}
    with tempfile.TemporaryDirectory() as folder:
        if "moves" in options.only:
            found = moves(Path(folder), worlds, options.updates)
            results["moves"] = [vars(move) for move in found]
            print(table_of_moves(found))
            print(f"{sum(move.holds for move in found)} of {len(found)} hold")
        if "features" in options.only:
            results["features"] = features(Path(folder), max(worlds), options.updates)
            print(table_of_features(results["features"]))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    from benchmarks.strategies import main  # what ranks call must not lie in __main__

    main()
