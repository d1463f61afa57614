"""What becomes of an elastic run whose hosts are killed, cut off, held up, started again, and joined by others.

    python benchmarks/host_faults.py [--only PATTERN] [--json FILE [--missing]] [--markdown FILE] [--folder DIR]

Every case trains the same tiny model by `gradwire train --resume launch.hosts=MIN:MAX` on hosts of the network
laboratory, has one thing or more befall them, and compares the whole run with an undisturbed one on two hosts: bit by
bit where as many hosts trained all the time, else the same samples with losses within 1e-5. Results are added to the
JSON.
"""

import argparse
import json
import math
import re
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # run by its path, the folder above is not on it

from benchmarks.comparison import TOLERANCE, differences, disagreements, final_state, losses
from benchmarks.host_events import BEGUN, BOTH, CASES, Case, Event
from benchmarks.host_lab import Fleet, LabError
from benchmarks.netlab import Netlab
from benchmarks.runs import lines

UPDATES = 60


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        event, becomes: As in the case.
        survived: Whether everything below is as it must be.
        hosts: Hosts after each change.
        seconds: From each loss (or decision) to the first new update.
        lost: Updates that had to be done again.
        compared: With the undisturbed run.
        wrong: What is not as it must be.
    """

    event: str
    becomes: str
    survived: bool = False
    hosts: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    compared: str = ""
    wrong: list[str] = field(default_factory=list)


class Campaign:
    """Runs cases in one laboratory.

    Args:
        lab: With as many hosts as the cases need.
        folder: Of the runs.
        updates: Of each of them.
    """

    def __init__(self, lab: Netlab, folder: Path, updates: int = UPDATES) -> None:
        self._lab, self._folder, self._updates = lab, folder, updates

    def undisturbed(self) -> Path:
        """The folder of the run that all are compared with."""
        folder, begun = self._folder / "undisturbed", self._folder / "begun"
        if not folder.exists():
            shutil.rmtree(begun, ignore_errors=True)
            with Fleet(self._lab, begun, "2:2", self._updates, 0.0) as fleet:
                for host in (0, 1):
                    fleet.start(host)
                _check_codes(fleet, BOTH)
            begun.rename(folder)
        return folder

    def run(self, case: Case) -> list[Result]:
        """What became of each event."""
        folder, reference = Path(tempfile.mkdtemp(dir=self._folder)) / "case", self.undisturbed()
        done: dict[Event, Result] = {}
        with Fleet(self._lab, folder, case.span, self._updates, case.pace) as fleet:
            try:
                for host in reversed(case.hosts):
                    fleet.start(host)
                    time.sleep(1)  # so that the others are there when the first one looks for them
                fleet.until(BEGUN)
                for event in case.events:
                    done[event] = _observe(event, case, fleet)
                _check_codes(fleet, case.codes)
                wrong = _compare(case, reference, folder)
            except LabError as error:
                wrong = [str(error)]
        compared = "same bits" if case.same else f"losses within {_largest(case, reference, folder):.1g}"
        results = [done.get(event, Result(event.name, event.becomes)) for event in case.events]
        return [
            replace(result, compared=compared, wrong=[*result.wrong, *wrong], survived=not (result.wrong or wrong))
            for result in results
        ]


def _observe(event: Event, case: Case, fleet: Fleet) -> Result:
    """Have an event happen."""
    changes, lost = len(fleet.changes()), _lost(case, fleet)
    event.act(fleet)
    new, lost = fleet.changes()[changes:], _lost(case, fleet) - lost
    most = 0 if event.planned else 1
    wrong = [f"{lost} updates were lost, {most} at most may be"] if lost > most else []
    hosts, seconds = [int(change["hosts"]) for change in new], [round(change["restart/seconds"], 1) for change in new]
    return Result(event.name, event.becomes, False, hosts, seconds, lost, wrong=wrong)


def _check_codes(fleet: Fleet, codes: dict[int, int]) -> None:
    for host, code in codes.items():
        if (found := fleet.wait(host)) != code:
            raise LabError(f"host {host} ended with {found}, not {code}\n{fleet.said(host)}")


def _lost(case: Case, fleet: Fleet) -> int:
    """Updates that were logged and had to be done again, in the same folder or in another one."""
    if case.run == "run":
        return fleet.lost()
    later = lines(fleet.folder / case.run)
    return max(0, fleet.newest() - int(later[0]["update"]) + 1) if later else 0


def _compare(case: Case, reference: Path, folder: Path) -> list[str]:
    """What the run did otherwise than the undisturbed one."""
    ours, theirs = folder / case.run, reference / "run"
    if case.run != "run":  # it went on in another folder, and was logged there from then on
        begun = lines(ours)[0]["update"]
        expected = {key for key in losses(theirs) if key[0] >= begun}
        same = losses(ours).keys() == expected and _largest(case, reference, folder) < TOLERANCE
        return [] if same else [f"{ours} and {theirs} differ"]
    if not case.same:
        return disagreements(theirs, ours)
    bits = differences(final_state(theirs, str(reference / "store")), final_state(ours, str(folder / "store")))
    return bits + (differences(losses(theirs), losses(ours)) if losses(theirs) != losses(ours) else [])


def _largest(case: Case, reference: Path, folder: Path) -> float:
    """The largest relative difference of any logged value."""
    ours, theirs = losses(folder / case.run), losses(reference / "run")
    pairs = [(value, theirs.get(key, math.nan)) for key, value in ours.items()]
    return max((abs(ours - theirs) / abs(theirs) if theirs else abs(ours) for ours, theirs in pairs), default=math.nan)


def to_markdown(results: list[dict[str, Any]]) -> str:
    """The table."""
    rows = [
        "| event | what becomes of it | first new update after | lost updates | the run ends in |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        seconds = ", ".join(f"{each:.1f} s" for each in result["seconds"]) or "–"
        end = result["compared"] if result["survived"] else f"**{result['wrong'][0].splitlines()[0]}**"
        rows.append(f"| {result['event']} | {result['becomes']} | {seconds} | {result['lost']} | {end} |")
    survived = sum(result["survived"] for result in results)
    return "\n".join([*rows, "", f"{survived} of {len(results)} survived.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default="", help="run the cases whose event holds one of these texts, with | between them"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--missing", action="store_true", help="run only what the JSON does not hold yet")
    parser.add_argument("--for", dest="seconds", type=float, default=math.inf, help="begin no case after so long")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--folder", type=Path, help="keeps the undisturbed run for the next time")
    options = parser.parse_args()
    known = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    results = {result["event"]: result for result in known}
    chosen = [case for case in CASES if any(re.search(options.only, event.name) for event in case.events)]
    if options.missing:
        chosen = [case for case in chosen if not all(event.name in results for event in case.events)]
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as temporary, Netlab(hosts=3, rate="1gbit") as lab:
        kept = options.folder or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        campaign = Campaign(lab, kept)
        for case in chosen:
            if time.monotonic() > end:
                break
            for result in campaign.run(case):
                results[result.event] = asdict(result)
                print(f"{'survived' if result.survived else 'FAILED':9}{result}", flush=True)
            names = [event.name for case in CASES for event in case.events]
            ordered = [results[name] for name in names if name in results]
            if options.json:
                options.json.write_text(json.dumps(ordered, indent=1) + "\n")
            if options.markdown:
                options.markdown.write_text(to_markdown(ordered))
    sys.exit(not all(result["survived"] for result in results.values()))


if __name__ == "__main__":
    main()
