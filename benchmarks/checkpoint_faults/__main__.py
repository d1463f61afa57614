"""Faults at every operation of saving, in gradwire.checkpoint, torch.save and torch's distributed checkpoints.

python -m benchmarks.checkpoint_faults [--json results.json] [--markdown table.md] [--every 1] [--only NAME]
"""

import argparse
import json
import logging
import time
from pathlib import Path

import torch

from benchmarks.checkpoint_faults.bucket import Bucket, BucketPlace
from benchmarks.checkpoint_faults.bucket_faults import NAME, fail_requests, kill_everywhere
from benchmarks.checkpoint_faults.contenders import FOLDER, PEERS
from benchmarks.checkpoint_faults.disk import Contents
from benchmarks.checkpoint_faults.disk_faults import crash_everywhere, fail_everywhere
from benchmarks.checkpoint_faults.gradwire_sessions import on_disk
from benchmarks.checkpoint_faults.places import DiskPlace, Workload
from benchmarks.checkpoint_faults.races import race_everywhere
from benchmarks.checkpoint_faults.tally import Tally, table

WORKLOAD = Workload(((1, 2, 3, 4), (5, 6)))


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
    for contender in (on_disk, *PEERS):
        name = getattr(contender, "name", "gradwire")
        if arguments.only and arguments.only != name:
            continue
        began = time.monotonic()
        strict, ordered = Contents.with_folder(str(FOLDER)), Contents.with_folder(str(FOLDER), ordered=True)
        for start in (strict, ordered):
            crash_everywhere(name, contender, WORKLOAD, tally, start, every=arguments.every)
        fail_everywhere(name, contender, WORKLOAD, tally, strict, every=arguments.every)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    if arguments.only in (None, "gradwire"):
        race_everywhere(
            "gradwire", lambda: DiskPlace(Contents.with_folder(str(FOLDER)), on_disk), tally, arguments.every
        )
    if arguments.only in (None, NAME):
        kill_everywhere(WORKLOAD, tally, arguments.every)
        fail_requests(WORKLOAD, tally, arguments.every)
        race_everywhere(NAME, lambda: BucketPlace(Bucket()), tally, arguments.every)
    rows = tally.to_json()
    print(table(rows))
    for row in rows:
        for example in row["examples"]:
            print(f"{row['contender']}, {row['fault']}: {example}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(table(rows))


if __name__ == "__main__":
    main()
