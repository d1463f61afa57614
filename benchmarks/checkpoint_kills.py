"""What SIGKILL does to a run: real runs of two ranks, killed at random moments, and what they end in.

    python -m benchmarks.checkpoint_kills [--kills 200] [--stores disk,s3] [--seed 0] [--json FILE] [--only TEXT]
    python -m benchmarks.checkpoint_kills --table FILE…

Each run is killed several times, in an update or while it comes up again: one rank, all ranks, the controller (whose
ranks end with it), or everything. Where `launch.restarts` allows it the controller goes on by itself; otherwise
`gradwire resume` does. In the end every tensor and number of the last snapshot and every logged loss must be those of
an undisturbed run of the same kind, to the last bit. How many updates were done again is counted in the lines of
metrics.jsonl that the run took back. A run that failed is named by kind, store and seed, and `--only` runs it again.
Where the JSON file is there already, the campaign goes on after the runs in it.
`--table` prints the table of JSON files, and with `--json` puts them together.
"""

import argparse
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoint_kill_kinds import KINDS, Kind, remove, s3_server, url_of
from benchmarks.checkpoint_kill_run import Killed, Life, RunError
from benchmarks.comparison import differences, final_state, losses
from benchmarks.runs import finish, lines, train

KILLS = 5  # of one run


class Campaign:
    """Runs what is killed, and once for each kind what it is compared with.

    Args:
        folder: Where runs go. Those that failed stay, and undisturbed ones, which another campaign there uses again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def undisturbed(self, kind: Kind) -> Path:
        folder = self._folder / _plain(f"undisturbed {kind.name}")
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}-begun")
            finish(train(begun, kind.command()))
            begun.rename(folder)
        return folder

    def run(self, kind: Kind, store: str, seed: str, kills: int = KILLS) -> Life:
        """One run and its kills; what went wrong stands in the answer."""
        reference = self.undisturbed(kind)
        folder = self._folder / _plain(seed)
        folder.mkdir()
        began = time.monotonic()
        killed = Killed(kind, store, seed, folder, kills)
        life = killed.life
        try:
            killed.run()
            life.differences = self._compare(reference, killed.folder, store)
            undisturbed, ended = (last_loss(folder) for folder in (reference, killed.folder))
            life.loss_apart = abs(ended / undisturbed - 1)
        except RunError as failure:
            life.failure = str(failure)
        life.seconds = time.monotonic() - began
        if not faults(life, kind):
            remove(store, killed.folder)
        return life

    def _compare(self, reference: Path, folder: Path, store: str) -> list[str]:
        found = differences(final_state(reference), final_state(folder, url_of(store, folder)))
        if losses(reference) != losses(folder):
            found += differences(losses(reference), losses(folder))
        return found


def last_loss(folder: Path) -> float:
    """Of the last evaluation."""
    return float([line["eval/loss"] for line in lines(folder) if "eval/loss" in line][-1])


def _plain(name: str) -> str:
    return name.translate(str.maketrans(" ,=", "---"))


def faults(life: Life, kind: Kind) -> list[str]:
    """What is wrong with a run, for people."""
    found = [life.failure] if life.failure else []
    if life.differences and kind.exact:
        found.append(f"{len(life.differences)} differences, such as {life.differences[0]}")
    if kind.repeats is not None:
        late = [kill for kill in life.kills if (kill.repeated or 0) > kind.repeats]
        found += [f"{kill.repeated} updates repeated after the kill {kill.moment}" for kill in late]
    return found


def schedule(stores: Sequence[str], seed: int, only: str) -> Iterator[tuple[Kind, str, str]]:
    """Kinds of runs in turn, each on every store, with a seed for each run."""
    for number in itertools.count():
        rows = [(kind, store, f"{kind.name}, {store}, {seed}, {number}") for kind in KINDS for store in stores]
        yield from (row for row in rows if only in row[2])
        if number > 999:
            return


def table(lives: Sequence[Life]) -> str:
    """The lives as a table for docs, by kind and store."""
    kinds = {kind.name: kind for kind in KINDS}
    rows = [
        "| run | store | runs | kills | resumed | same bits | evaluation loss apart | most updates repeated | failed |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, store in dict.fromkeys((life.kind, life.store) for life in lives):
        mine = [life for life in lives if (life.kind, life.store) == (name, store)]
        kills = [kill for life in mine for kill in life.kills]
        resumed = sum(kill.continued is not None for kill in kills)
        same = sum(not life.differences and not life.failure for life in mine)
        most = max((kill.repeated or 0 for kill in kills), default=0)
        failed = "; ".join(life.seed for life in mine if faults(life, kinds[name])) or "none"
        apart = max(life.loss_apart for life in mine)
        rows.append(
            f"| {name} | {store} | {len(mine)} | {len(kills)} | {resumed} | {same} of {len(mine)} | {apart:.2%} "
            f"| {most} | {failed} |"
        )
    return "\n".join(rows)


def summary(lives: Sequence[Life]) -> str:
    """Whom the kills hit, and who made the runs go on."""
    kills = [kill for life in lives for kill in life.kills]
    hit, by = (Counter(getattr(kill, name) for kill in kills) for name in ("victim", "by"))
    return (
        f"{len(kills)} kills in {len(lives)} runs: "
        + ", ".join(f"{victim} {count}" for victim, count in hit.most_common())
        + "; went on by "
        + ", ".join(f"{who or 'nobody'} {count}" for who, count in by.most_common())
    )


def read(file: Path) -> list[Life]:
    return [Life.from_json(record) for record in json.loads(file.read_text())]


def write(file: Path, lives: Sequence[Life]) -> None:
    file.write_text(json.dumps([life.to_json() for life in lives], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stores", default="disk,s3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="only runs whose name (kind, store, seed, number) holds this text")
    parser.add_argument("--folder", type=Path, help="keep the runs that failed here")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of JSON files, and run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        lives = [life for file in arguments.table for life in read(file)]
        print(f"{table(lives)}\n\n{summary(lives)}")
        if arguments.json:
            write(arguments.json, lives)
        return
    sys.exit(campaign(arguments))


def campaign(arguments: argparse.Namespace) -> int:
    """Run until there were as many kills as asked for; whether any run failed."""
    lives = read(arguments.json) if arguments.json and arguments.json.exists() else []
    done = {life.seed for life in lives}
    kinds = {kind.name: kind for kind in KINDS}
    with ExitStack() as stack:
        stores = arguments.stores.split(",")
        if "s3" in stores:
            stack.enter_context(s3_server())
        folder = arguments.folder or Path(stack.enter_context(TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        runs = Campaign(folder)
        for kind, store, seed in schedule(stores, arguments.seed, arguments.only):
            if seed in done:
                continue
            life = runs.run(kind, store, seed)
            lives.append(life)
            wrong = faults(life, kind)
            print(f"{'; '.join(wrong) or 'sound'}: {seed}, {len(life.kills)} kills, {life.seconds:.0f} s", flush=True)
            if arguments.json:
                write(arguments.json, lives)
            if sum(len(each.kills) for each in lives) >= arguments.kills:
                break
    print(f"{table(lives)}\n\n{summary(lives)}")
    return int(any(faults(life, kinds[life.kind]) for life in lives))


if __name__ == "__main__":
    main()
