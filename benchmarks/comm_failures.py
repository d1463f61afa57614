"""What a rank that dies or stalls does to the others: an error with a name in time, or a hang.

    python -m benchmarks.comm_failures [--json results.json] [--cases 50] [--seed 0] [--phase codec] [--margin 2]

Every case is a job of its own: processes joined by gloo make the same calls, and one of them is planted a signal that
strikes it in a given phase. Each other one must raise CollectiveError that names axis, rank and round (under the
backend's own all-reduce: what failed and the rank) within the time-out, and end like any Python process.
"""

import argparse
import json
import math
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.comm_failure_cases import PHASES, SIGNALS, Case, draw
from benchmarks.comm_failure_ranks import TIMEOUT, live
from gradwire.trainer.launch.ports import free_port

PATIENCE = 40.0  # seconds after which a rank hangs
ATTEMPTS = 5


@dataclass(frozen=True)
class Outcome:
    """What became of a case: for each survivor its error (or None), seconds from the blow to it, and exit status."""

    case: Case
    errors: list[str | None]
    seconds: list[float | None]
    exits: list[int | None]
    struck: bool
    named: bool
    in_time: bool
    blamed: int

    @property
    def good(self) -> bool:
        return self.named and self.in_time and not any(self.exits)


def run(case: Case, margin: float) -> Outcome:
    """Play one case; afterwards all its processes are gone."""
    port = free_port()
    pipes = [os.pipe() for _ in range(case.ranks)]
    agent = _fork(lambda: _serve(port))
    ranks = [_fork(lambda rank=rank: live(case, rank, port, pipes[rank][1])) for rank in range(case.ranks)]  # type: ignore[misc]
    try:
        struck = _answer(pipes[case.victim][0]).get("struck", math.nan)
        survivors = [rank for rank in range(case.ranks) if rank != case.victim]
        answers = [_answer(pipes[rank][0]) for rank in survivors]
        exits = [_exit(ranks[rank]) for rank in survivors]
    finally:
        for number in (*ranks, agent):
            _end(number)
        for pipe in pipes:
            os.close(pipe[0])
            os.close(pipe[1])
    return _judged(case, margin, struck, answers, exits)


def _serve(port: int) -> None:
    """What an agent is there for: the store outlives the ranks."""
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    time.sleep(10 * PATIENCE)
    del store


def _fork(work: Callable[[], None]) -> int:
    """The number of a new process that does `work` and then exits as Python does."""
    number = os.fork()
    if number == 0:
        os.setpgid(0, 0)
        work()
        sys.exit(0)
    return number


def _answer(pipe: int) -> dict[str, Any]:
    """What a rank reports; empty where it hangs."""
    if not select.select([pipe], [], [], PATIENCE)[0]:
        return {}
    answer: dict[str, Any] = json.loads(os.read(pipe, 1 << 16))
    return answer


def _exit(number: int) -> int | None:
    """A process's exit status, negative for a signal; None where it hangs."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


def _end(number: int) -> None:
    try:
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _judged(
    case: Case, margin: float, struck: float, answers: list[dict[str, Any]], exits: list[int | None]
) -> Outcome:
    """What the survivors' answers come to; `struck` is when the blow fell, NaN where it never did."""
    errors = [answer.get("error") for answer in answers]
    seconds = [answer["at"] - struck if "at" in answer else None for answer in answers]
    return Outcome(
        case,
        errors,
        seconds,
        exits,
        struck=not math.isnan(struck),
        named=all(answer.get("class") == "CollectiveError" and _names(case, answer["error"]) for answer in answers),
        in_time=all(each is not None and each < TIMEOUT + margin for each in seconds),
        blamed=sum(bool(re.search(rf"\brank {case.victim}\b", error or "")) for error in errors),
    )


def _names(case: Case, error: str) -> bool:
    """Whether it says what failed and who: with our own rounds axis, rank and round."""
    axis = "|".join(case.axes)
    if case.native or case.phase in ("attach", "group creation"):
        return bool(re.search(r"(all-reduce|group|broadcast).* on rank \d", error))
    return bool(re.search(rf"round \d+ of \d+ of the [a-z-]+.* along ({axis}) failed on rank \d", error))


def table(outcomes: list[Outcome]) -> str:
    """Phase × signal: cases with a named error in time, of how many, and the slowest; whom they blamed."""
    lines = [f"{'phase':24}{'signal':10}{'named in time':>14}{'hangs':>7}{'bad exits':>11}{'slowest':>9}{'blamed':>9}"]
    for phase in PHASES:
        for blow in SIGNALS:
            mine = [each for each in outcomes if (each.case.phase, each.case.signal) == (phase, blow)]
            if not mine:
                continue
            seconds = [second for each in mine for second in each.seconds if second is not None]
            survivors = sum(len(each.errors) for each in mine)
            lines.append(
                f"{phase:24}{blow:10}{sum(each.named and each.in_time for each in mine):>8} of {len(mine):<3}"
                f"{sum(None in each.seconds or None in each.exits for each in mine):>7}"
                f"{sum(any(each.exits) for each in mine):>11}{max(seconds, default=0):>8.1f}s"
                f"{sum(each.blamed for each in mine):>5}/{survivors}"
            )
    return "\n".join(lines)


def _until_struck(case: Case, margin: float) -> Outcome:
    """Again where the machine was too busy to come as far as the blow within the time-out."""
    for _ in range(ATTEMPTS):
        outcome = run(case, margin)
        if outcome.struck:
            break
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phase", choices=PHASES, action="append")
    parser.add_argument(
        "--margin", type=float, default=2.0, help="seconds that a busy machine may add to the time-out of 3"
    )
    options = parser.parse_args()
    outcomes = []
    for case in draw(options.cases, options.seed, tuple(options.phase or PHASES)):
        outcomes.append(_until_struck(case, options.margin))
        if not outcomes[-1].good:
            print(outcomes[-1], file=sys.stderr)
    print(table(outcomes))
    if options.json:
        options.json.write_text(json.dumps([asdict(each) | {"good": each.good} for each in outcomes], indent=1))
    sys.exit(0 if all(each.good for each in outcomes) else 1)


if __name__ == "__main__":
    main()
