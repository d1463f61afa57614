"""Whether strategies are interchangeable: the same losses, runs that move between them, and every feature under each.

    python -m benchmarks.strategies [--only moves,features] [--ranks 1,2,4] [--updates 50] [--folder FOLDER]
        [--json FILE]
    python -m benchmarks.strategies --table FILE

`moves`: one decoder trains under every strategy at every number of ranks and is saved halfway; every one of these
snapshots is restored under every strategy at every number of ranks and trained to the end. Losses are compared with
those of plain data parallelism on one rank; where nothing moved, bit by bit with the run's own. `features`: what a
trainer can do beside, under every strategy on the most ranks, against plain data parallelism on as many; DiLoCo, whose
two hosts learn what they learn, against itself on hosts of one rank.
Where the folder holds runs of a call that was interrupted, it goes on after them; what the JSON file holds of the other
part is kept. `--table` prints the tables of a JSON file, and runs nothing.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from benchmarks.strategy_runs import APART, FEATURES, STRATEGIES, ZERO, Way, refused, spawned, train, unmeasured
from benchmarks.strategy_tables import tables

WORLDS = (1, 2, 4)
TOLERANCE = 1e-5
COMPARED = ("train/loss", "batch_size", "grad_norm", "noise_scale", "eval/loss", "skipped")
_TOGETHER = 30  # runs of the same processes: each leaves groups behind
Log = Mapping[int, Mapping[str, Any]]
Case = TypeVar("Case")


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


def start_runs(rank: int, folder: str, ways: Iterable[Way], updates: int) -> None:
    """Train in each of these ways, saving halfway; rank 0 writes what was logged. On the ranks."""
    for way in ways:
        logged = train(way, f"{folder}/{_name(way)}", save_every=updates // 2, updates=updates)
        _write(rank, start_log(folder, way), logged)


def resume_runs(rank: int, folder: str, moves: Iterable[tuple[Way, Way]], updates: int) -> None:
    """Go on from the first way's snapshot in the second way. On the ranks, whose number is that of the second ways."""
    for start, resume in moves:
        logged = train(resume, f"{folder}/{_name(start)}", resume=updates // 2, updates=updates, save=False)
        _write(rank, move_log(folder, start, resume), logged)


def feature_runs(rank: int, folder: str, cases: Iterable[tuple[Way, str]], updates: int) -> None:
    """Train in a way with a feature. On the ranks."""
    for way, feature in cases:
        _write(rank, feature_log(folder, way, feature), train(way, None, updates=updates, feature=feature))


def start_log(folder: Path | str, way: Way) -> Path:
    return Path(folder) / f"{_name(way)}.json"


def move_log(folder: Path | str, start: Way, resume: Way) -> Path:
    return Path(folder) / f"{_name(start)}-{_name(resume)}.json"


def feature_log(folder: Path | str, way: Way, feature: str) -> Path:
    return Path(folder) / f"{_name(way)}-{feature.replace(' ', '_')}.json"


def judge(folder: Path, start: Way, resume: Way, reference: Way) -> Move:
    """How a move went."""
    went = read(move_log(folder, start, resume))
    own, expected = (read(start_log(folder, way)) for way in (start, reference))
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


def _name(way: Way) -> str:
    return f"{way.strategy}-{way.ranks}"


def _write(rank: int, path: Path, logged: Log) -> None:
    """Whole or not at all: what is there is not run again."""
    if rank == 0:
        begun = path.with_suffix(".begun")
        begun.write_text(json.dumps(logged))
        begun.replace(path)


class Campaign:
    """Runs everything once.

    Args:
        folder: Where runs and their logs lie. Those whose log is there are over.
        worlds: Numbers of ranks.
        updates: Of each run.
    """

    def __init__(self, folder: Path, worlds: Sequence[int], updates: int) -> None:
        self._folder, self._worlds, self._updates = folder, worlds, updates
        self._ways = [Way(strategy, ranks) for ranks in worlds for strategy in (*STRATEGIES, *ZERO)]

    def moves(self) -> dict[str, Any]:
        """Every start under every resume: how far both are from the reference."""
        reference = self._ways[0]
        begun = [way for way in self._ways if not start_log(self._folder, way).exists()]
        for way in begun:
            shutil.rmtree(self._folder / _name(way), ignore_errors=True)
        self._run(start_runs, begun, lambda way: way.ranks)
        pairs = list(product(self._ways, self._ways))
        missing = [pair for pair in pairs if not move_log(self._folder, *pair).exists()]
        self._run(resume_runs, missing, lambda pair: pair[1].ranks)
        expected = read(start_log(self._folder, reference))
        logs = {str(way): read(start_log(self._folder, way)) for way in self._ways}
        return {
            "updates": self._updates,
            "starts": {way: apart(log, expected, ["train/loss"]) for way, log in logs.items()},
            "moves": [asdict(judge(self._folder, *pair, reference)) for pair in pairs],
        }

    def features(self) -> dict[str, Any]:
        """By strategy and feature, how far what was logged is from what it is compared with; None where refused."""
        ranks = max(self._worlds)
        ways = [Way(strategy, ranks) for strategy in (*STRATEGIES, *ZERO, APART)]
        cases = [case for case in product(ways, FEATURES) if not refused(case[0].strategy, case[1])]
        wanted = [*cases, *((_compared_with(way), feature) for way, feature in cases if way.strategy == APART)]
        missing = [case for case in wanted if not feature_log(self._folder, *case).exists()]
        self._run(feature_runs, missing, lambda case: case[0].ranks)
        found: dict[str, dict[str, float | None]] = {way.strategy: dict.fromkeys(FEATURES) for way in ways}
        for way, feature in cases:
            logs = [read(feature_log(self._folder, each, feature)) for each in (way, _compared_with(way))]
            found[way.strategy][feature] = apart(*logs, _keys(way, feature))
        return {"ranks": ranks, "updates": self._updates, "apart": found}

    def _run(self, what: Callable[..., None], cases: Sequence[Case], ranks_of: Callable[[Case], int]) -> None:
        for ranks in sorted({ranks_of(case) for case in cases}):
            mine = [case for case in cases if ranks_of(case) == ranks]
            for first in range(0, len(mine), _TOGETHER):
                spawned(ranks, what, str(self._folder), mine[first : first + _TOGETHER], self._updates)
                done = min(first + _TOGETHER, len(mine))
                print(f"{what.__name__} on {ranks} ranks: {done} of {len(mine)}", file=sys.stderr, flush=True)


def _compared_with(way: Way) -> Way:
    return Way(APART, 2) if way.strategy == APART else Way("ddp", way.ranks)


def _keys(way: Way, feature: str) -> list[str]:
    """What both log."""
    return [key for key in COMPARED if key != "noise_scale" or not unmeasured(way.strategy, feature)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="moves,features")
    parser.add_argument("--ranks", default=",".join(map(str, WORLDS)))
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="keep the runs here, and go on after those that are there")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of a JSON file, and run nothing")
    options = parser.parse_args()
    if options.table:
        print(tables(json.loads(options.table.read_text())))
        return
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(folder, [int(each) for each in options.ranks.split(",")], options.updates)
        for part in options.only.split(","):
            results[part] = {"moves": campaign.moves, "features": campaign.features}[part]()
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results))


if __name__ == "__main__":
    from benchmarks.strategies import main  # what ranks call must not lie in __main__

    main()
