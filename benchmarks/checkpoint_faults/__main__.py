"""Faults at every operation of saving, in gradwire.checkpoint, torch.save and torch's distributed checkpoints.

python -m benchmarks.checkpoint_faults [--json results.json] [--markdown tables.md] [--only NAME] [--sample SEED]

Disk and object store are simulated in memory (disk.py says by which rules). gradwire.checkpoint runs through its public
interface on its own file operations and requests; torch.save writes to the file that it is handed, torch DCP through
its FileSystemBase, so that all that they do to files is seen. Opening a file for writing counts as removing it and
making a new one. A cell is survived / injected; `refused` ended in an error, `lost` in an older state, another one, or
none.
"""

import argparse
import faulthandler
import json
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint_faults.bit_flips import all_flips, flips_table
from benchmarks.checkpoint_faults.bucket import Bucket, BucketPlace, Kind
from benchmarks.checkpoint_faults.bucket_faults import fail_requests, kill_everywhere, name_of
from benchmarks.checkpoint_faults.choices import EVERYTHING, Choice, Sample
from benchmarks.checkpoint_faults.contenders import FOLDER, PEERS
from benchmarks.checkpoint_faults.disk import Contents
from benchmarks.checkpoint_faults.disk_faults import crash_everywhere, fail_everywhere
from benchmarks.checkpoint_faults.gradwire_sessions import GradwireSession, on_disk
from benchmarks.checkpoint_faults.journal_sessions import JournalSession, journal_on_disk
from benchmarks.checkpoint_faults.places import DiskPlace, OpenSession, Workload
from benchmarks.checkpoint_faults.races import JOURNAL_RACES, RACES, Race, race_everywhere
from benchmarks.checkpoint_faults.tally import Tally, table

WORKLOAD = Workload(((1, 2, 3, 4), (5, 6)))


BIT_FLIPS = "bit flips"
PATIENCE = 600.0  # seconds for one verdict


def campaigns(choice: Choice) -> dict[str, Callable[[Tally], None]]:
    """What is done for each contender, by its name."""

    def on_a_disk(name: str, open_session: OpenSession, races: tuple[Race, ...], tally: Tally) -> None:
        folder = Contents.with_folder(str(FOLDER))
        for start in (folder, Contents.with_folder(str(FOLDER), ordered=True)):
            crash_everywhere(name, open_session, WORKLOAD, tally, start, choice=choice)
        fail_everywhere(name, open_session, WORKLOAD, tally, folder, choice)
        if races:
            race_everywhere(name, lambda: DiskPlace(folder.copy(), open_session), tally, races, choice)

    def in_a_bucket(kind: Kind, races: tuple[Race, ...], tally: Tally) -> None:
        kill_everywhere(kind, WORKLOAD, tally, choice)
        fail_requests(kind, WORKLOAD, tally, choice)
        race_everywhere(name_of(kind), lambda: BucketPlace(Bucket(), kind), tally, races, choice)

    return {
        "gradwire": partial(on_a_disk, "gradwire", on_disk, RACES),
        JournalSession.name: partial(on_a_disk, JournalSession.name, journal_on_disk, JOURNAL_RACES),
        **{peer.name: partial(on_a_disk, peer.name, peer, ()) for peer in PEERS},
        name_of(GradwireSession): partial(in_a_bucket, GradwireSession, RACES),
        name_of(JournalSession): partial(in_a_bucket, JournalSession, JOURNAL_RACES),
    }


def run(choice: Choice, only: str | None) -> dict[str, Any]:
    """Results of the campaigns and of the flipped bits, or only of those of one name."""
    tally = Tally(told=_watch)
    for name, campaign in campaigns(choice).items():
        if only in (None, name):
            began = time.monotonic()
            campaign(tally)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    flips = [vars(each) for each in all_flips()] if only in (None, BIT_FLIPS) else []
    return {"faults": tally.to_json(), BIT_FLIPS: flips}


def _watch() -> None:
    """Should the next verdict not come, tell where all threads are, and end."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)


def joined(files: list[Path]) -> dict[str, Any]:
    """Results of several runs as one."""
    results = [json.loads(file.read_text()) for file in files]
    return {key: [row for each in results for row in each[key]] for key in ("faults", BIT_FLIPS)}


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    remote = [row for row in results["faults"] if "object store" in row["contender"]]
    local = [row for row in results["faults"] if row not in remote]
    tables = [table(rows) for rows in (local, remote) if rows]
    return "\n".join([*tables, *([flips_table(results[BIT_FLIPS])] if results[BIT_FLIPS] else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--markdown", type=Path, help="where the tables go")
    parser.add_argument("--sample", type=int, metavar="SEED", help="only a few operations of each kind")
    parser.add_argument("--only", choices=[*campaigns(EVERYTHING), BIT_FLIPS], help="only this one")
    parser.add_argument("--join", type=Path, nargs="+", help="put results of earlier runs together in place of a run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable()
    choice = EVERYTHING if arguments.sample is None else Sample(arguments.sample, operations=10, cases=3)
    results = joined(arguments.join) if arguments.join else run(choice, arguments.only)
    print(page(results))
    for row in results["faults"]:
        for example in row["examples"]:
            print(f"{row['contender']}, {row['fault']}: {example}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(page(results))
    if any(row["contender"].startswith("gradwire") and row["survived"] < row["injected"] for row in results["faults"]):
        sys.exit("gradwire.checkpoint did not survive everything")


if __name__ == "__main__":
    main()
