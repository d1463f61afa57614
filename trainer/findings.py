"""What `gradwire batch-size` has found, for people and as files."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer import named_files, plots
from gradwire.trainer.noise_survey import Noise
from gradwire.trainer.recommendation import Recommendation
from gradwire.trainer.rehearsal import Speed

_CAVEAT = (
    "The noise scale was measured after {updates} of {total} updates. It grows as the loss falls, often tenfold over a "
    "run: measure later in the run with --updates, or let the batch grow with it (batch=noise_scale)."
)


@dataclass(frozen=True)
class Findings:
    """All that was measured.

    Args:
        world_size: Ranks.
        device: Kind of device.
        largest_micro_batch: Samples of the largest pass that fits.
        limit: Samples up to which it was searched for.
        speeds: Throughput by size of pass.
        updates: Updates of training before the noise scale was measured.
        noise: The noise scale.
    """

    world_size: int
    device: str
    largest_micro_batch: int
    limit: int
    speeds: tuple[Speed, ...]
    updates: int
    noise: Noise


def to_text(findings: Findings, advice: Recommendation, total_updates: int, again: str) -> str:
    """What was found and what follows, for people."""
    noise = findings.noise
    lines = ["", f"{'micro-batch':>11}  {'samples/s':>12}  {'tokens/s':>14}  {'ms a pass':>10}"]
    lines += [
        f"{speed.micro_batch:>11,}  {speed.samples_per_second:>12,.1f}  {speed.tokens_per_second:>14,.0f}"
        f"  {1000 * speed.seconds:>10.2f}"
        for speed in findings.speeds
    ]
    where = f"{findings.world_size} {'rank' if findings.world_size == 1 else 'ranks'} on {findings.device}"
    lines += [f"forward and backward on {where}, without the all-reduce and the optimizer's step", ""]
    lines += [f"largest that fits  {_largest(findings)}", f"noise scale        {_noise(noise)}", "", "recommended"]
    lines += [_hanging(f"  {each.name:<15}{each.value:<16}{each.reason}", 33) for each in advice.advice]
    caveat = _CAVEAT.format(updates=f"{findings.updates:,}", total=f"{total_updates:,}")
    return "\n".join([*lines, "", _hanging(caveat, 0), "", again]) + "\n"


def write(arguments: Mapping[str, Any], findings: Findings, advice: Recommendation, again: str) -> None:
    """Into the files that were asked for: all numbers as JSON, and a picture."""
    if arguments["json"]:
        record = asdict(findings) | {"recommendation": asdict(advice), "command": again}
        text = json.dumps(record, indent=1, allow_nan=False) + "\n"
        named_files.write(Path(arguments["json"]), text.encode())
    if arguments["png"]:
        plots.save_batch_size(
            Path(arguments["png"]),
            [speed.micro_batch for speed in findings.speeds],
            [speed.samples_per_second for speed in findings.speeds],
            findings.noise.noise_scale,
            advice.batch_size,
        )


def _hanging(text: str, indent: int) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _largest(findings: Findings) -> str:
    size = f"{findings.largest_micro_batch:,} samples"
    if findings.largest_micro_batch < findings.limit:
        return f"{size}: memory ends there"
    if findings.device == "cuda":
        return f"{size}: more were not tried"
    return f"{size}: a rank's whole share of the batch"


def _noise(noise: Noise) -> str:
    on = f"{noise.rounds} × {noise.samples:,} samples"
    if noise.noise_scale is None:
        return f"not measurable on {on}: the gradient drowns in the noise, so it lies far above {noise.samples:,}"
    rough = "" if noise.enough else "; a rough guess: a round should have several times as many"
    return f"{noise.noise_scale:,.1f} samples (measured on {on}{rough})"
