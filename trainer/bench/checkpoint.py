"""`gradwire bench checkpoint` on one rank: the contest, its table, its JSON and its picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradwire.checkpoint.benchmark import NAMES, Contest, Place, Recovered, TrainingState, can_drop
from gradwire.trainer.bench import checkpoint_picture
from gradwire.trainer.bench.checkpoint_rows import Row, recovery_line, rows, to_text
from gradwire.trainer.bench.running import Stopped, conclude, on_any, pulse, say, write_json
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.worker import main

PROGRAM = ("-m", "gradwire.trainer.bench.checkpoint")


@dataclass(frozen=True)
class Findings:
    """All that was measured.

    Attributes:
        url: Where it was.
        ranks: How many saved together.
        state: Bytes of the state.
        frozen: Share of its parameters that never change.
        torch: Version.
        cold: Whether restoring was measured without the disk's cache too.
        contenders: By name.
        recovered: By round, recovery from a snapshot and a journal.
        unavailable: Why a contender did not take part.
        wrong: What was wrong with results, a line each.
    """

    url: str
    ranks: int
    state: int
    frozen: float
    torch: str
    cold: bool
    contenders: dict[str, Row]
    recovered: list[Recovered]
    unavailable: dict[str, str]
    wrong: list[str]


def measure(config: Mapping[str, Any], context: WorkerContext) -> int:
    """Measure on this rank, together with the others; the first rank tells. The exit code.

    Raises:
        WrongResultError: A result was wrong; all others were told before.
    """
    place = Place(context.arguments["url"])
    try:
        findings = _measure(context, place)
    except Stopped:
        return int(ExitCode.PREEMPTED)
    finally:
        if context.rank == 0:
            place.remove()
    if context.rank == 0:
        _write(findings, context.arguments)
    return conclude(findings.wrong, context)


def _measure(context: WorkerContext, place: Place) -> Findings:
    arguments = context.arguments
    state = TrainingState(round(arguments["mb"] * 2**20), arguments["frozen"], context.device)
    cold = place.folder is not None and _all(can_drop(), context)
    contest = Contest(place, NAMES, state, cold, lambda step: pulse(context, step))
    if context.rank == 0:
        say(heading(state, context.world_size, place, cold, arguments["frozen"]))
        for name, reason in contest.unavailable.items():
            say(f"{name} is not available: {reason}")
    contest.measure(arguments["rounds"], arguments["updates"])
    contest.close()
    found = rows(contest.measured, state.nbytes)
    if context.rank == 0:
        say(to_text(found))
        say(recovery_line(contest.recovered))
    return Findings(
        place.url,
        context.world_size,
        state.nbytes,
        arguments["frozen"],
        torch.__version__,
        cold,
        found,
        contest.recovered,
        contest.unavailable,
        [f"{name}: {fault}" for name, each in contest.measured.items() for fault in each.wrong],
    )


def heading(state: TrainingState, ranks: int, place: Place, cold: bool, frozen: float) -> str:
    """What is compared."""
    part = f", {frozen:.1%} of the parameters frozen" if frozen else ""
    lines = [
        f"{state.nbytes / 1e6:,.1f} MB of weights and AdamW's moments{part}; ranks: {ranks}; {place.url}",
        "stall: until training may go on. durable: until the state is safe. written: bytes of new files.",
        "×: how many times as much as gradwire, in paired rounds, with 95 % intervals.",
    ]
    if not cold:
        lines.append("cold restores are left out: only files on a local disk, on Linux, have a cache to drop.")
    return "\n".join(lines)


def _all(value: bool, context: WorkerContext) -> bool:
    return not on_any(not value, context)


def _write(findings: Findings, arguments: Mapping[str, Any]) -> None:
    write_json(findings, arguments)
    if arguments["plot"] is not None:
        checkpoint_picture.save(Path(arguments["plot"]), findings.contenders)


if __name__ == "__main__":
    main(body=measure)
