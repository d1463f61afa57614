"""Faults at every operation of saving, in gradwire.checkpoint, torch.save and torch's distributed checkpoints.

python -m benchmarks.checkpoint_faults [--json results.json] [--markdown table.md] [--every 1] [--only NAME]
"""

import argparse
import json
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.checkpoint_faults.bit_flips import all_flips, flips_table
from benchmarks.checkpoint_faults.bucket import Bucket, BucketPlace, Kind
from benchmarks.checkpoint_faults.bucket_faults import fail_requests, kill_everywhere, name_of
from benchmarks.checkpoint_faults.contenders import FOLDER, PEERS
from benchmarks.checkpoint_faults.disk import Contents
from benchmarks.checkpoint_faults.disk_faults import crash_everywhere, fail_everywhere
from benchmarks.checkpoint_faults.gradwire_sessions import GradwireSession, on_disk
from benchmarks.checkpoint_faults.journal_sessions import JournalSession, journal_on_disk
from benchmarks.checkpoint_faults.places import DiskPlace, OpenSession, Workload
from benchmarks.checkpoint_faults.races import JOURNAL_RACES, RACES, Race, race_everywhere
from benchmarks.checkpoint_faults.tally import Tally, table

WORKLOAD = Workload(((1, 2, 3, 4), (5, 6)))


def campaigns(every: int) -> dict[str, Callable[[Tally], None]]:
    """What is done for each contender, by its name."""

    def on_a_disk(name: str, open_session: OpenSession, races: tuple[Race, ...], tally: Tally) -> None:
        folder = Contents.with_folder(str(FOLDER))
        for start in (folder, Contents.with_folder(str(FOLDER), ordered=True)):
            crash_everywhere(name, open_session, WORKLOAD, tally, start, every=every)
        fail_everywhere(name, open_session, WORKLOAD, tally, folder, every=every)
        if races:
            race_everywhere(name, lambda: DiskPlace(folder.copy(), open_session), tally, every, races)

    def in_a_bucket(kind: Kind, races: tuple[Race, ...], tally: Tally) -> None:
        kill_everywhere(kind, WORKLOAD, tally, every)
        fail_requests(kind, WORKLOAD, tally, every)
        race_everywhere(name_of(kind), lambda: BucketPlace(Bucket(), kind), tally, every, races)

    return {
        "gradwire": partial(on_a_disk, "gradwire", on_disk, RACES),
        JournalSession.name: partial(on_a_disk, JournalSession.name, journal_on_disk, JOURNAL_RACES),
        **{peer.name: partial(on_a_disk, peer.name, peer, ()) for peer in PEERS},
        name_of(GradwireSession): partial(in_a_bucket, GradwireSession, RACES),
        name_of(JournalSession): partial(in_a_bucket, JournalSession, JOURNAL_RACES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th operation")
    parser.add_argument("--only", help="only the contender of this name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable()
    tally = Tally()
    for name, campaign in campaigns(arguments.every).items():
        if arguments.only in (None, name):
            began = time.monotonic()
            campaign(tally)
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    rows = tally.to_json()
    flips = [] if arguments.only else [vars(each) for each in all_flips()]
    print(table(rows))
    print(flips_table(flips))
    for row in rows:
        for example in row["examples"]:
            print(f"{row['contender']}, {row['fault']}: {example}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"faults": rows, "bit flips": flips}, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(table(rows) + "\n" + flips_table(flips))


if __name__ == "__main__":
    main()
