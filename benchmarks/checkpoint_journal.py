"""What it costs to have every update durable: bytes, time of an update, time of recovery. A decoder of 10 M parameters.

    python -m benchmarks.checkpoint_journal costs|bases|recovery|frozen [--codec none,int8,int4] [--json FILE]

All runs are `gradwire train` on two ranks, float32, AdamW, real text.

costs: stretches of updates without a journal, with durability `interval` and with `update` take turns in one run, for
each codec; the ratio is of paired stretches, with its 95 % bootstrap interval. Their bytes give what an update costs
at the interval between snapshots that a recovery within five minutes allows, against a snapshot at every update.
bases: whether that holds: a run whose recovery may take only seconds, so that several snapshots fall due.
recovery: a run is killed (SIGKILL) late after its snapshot and resumed: what loading and replaying took, by the goal.
frozen: snapshots alone, at every update, of a model of which only low-rank additions are trained.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_journal_parts import bases, costs, frozen, recovery

PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "costs": costs,
    "bases": bases,
    "recovery": recovery,
    "frozen": frozen,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--batch", type=int, default=16, help="samples of an update")
    parser.add_argument("--stretch", type=int, default=5, help="updates of a stretch")
    parser.add_argument("--rounds", type=int, default=6, help="stretches of each kind")
    parser.add_argument("--updates", type=int, default=60, help="of the runs that count bytes")
    parser.add_argument("--within", type=float, default=20.0, help="seconds that recovery may take")
    parser.add_argument("--model", default="decoder_10m")
    parser.add_argument("--json", help="results by part and codec are added to this file")
    arguments = parser.parse_args()
    found = PARTS[arguments.part](arguments)
    if arguments.json:
        path = Path(arguments.json)
        told = json.loads(path.read_text()) if path.exists() else {}
        told.setdefault(arguments.part, {})[arguments.codec] = found
        path.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
