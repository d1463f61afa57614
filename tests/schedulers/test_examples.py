import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.schedulers import Plan, Step
from gradwire.schedulers.batch import LinearWarmup
from gradwire.schedulers.lr import LinearDecay, Warmup
from gradwire.schedulers.scaling import SquareRoot

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r"update +(\d+)  batch +(\d+)  lr ([\d.]+)  loss ([\d.]+)")
DIGITS = 1797


def lines_of(example: str) -> list[str]:
    """What an example prints, line by line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, EXAMPLES / example]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    return [line for line in run.stdout.splitlines() if "real_accelerator.py" not in line]  # DeepSpeed, if it is there


def check_against(steps: list[Step], lines: list[str], every: int) -> list[float]:
    """Each printed line against the plan; returns the losses."""
    found = [match.groups() for match in map(LINE.fullmatch, lines) if match]
    assert len(found) == len(lines) == -(-len(steps) // every)
    for (update, batch, lr, _), number in zip(found, range(0, len(steps), every), strict=True):
        assert int(update) == number
        assert int(batch) == steps[number].batch_size
        assert lr == f"{steps[number].lr:.{len(lr) - 2}f}"
    return [float(loss) for *_, loss in found]


def steps_of(plan: Plan) -> list[Step]:
    return [step for _, step in plan.updates()]


def test_the_plain_loop_trains_to_the_end_of_its_plan() -> None:
    plan = Plan(
        lr=1e-2 * Warmup("5%").then(LinearDecay()),
        batch=128 * LinearWarmup("25%"),
        scaling=SquareRoot(reference=128),
        run_length="60_000 samples",
        granule=8,
    )
    *lines, last = lines_of("plan_in_a_plain_loop.py")
    losses = check_against(steps_of(plan), lines, every=50)
    assert losses[-1] < losses[0] / 10
    assert last.startswith(f"{plan.total_updates} of {plan.total_updates} updates, 60000 samples")


@pytest.mark.slow
@pytest.mark.parametrize("example", ["plan_in_lightning.py", "plan_in_hf_trainer.py"])
def test_other_peoples_trainers_train_to_the_end_of_the_plan(example: str) -> None:
    plan = Plan(
        lr=4e-3 * Warmup("5%").then(LinearDecay()),
        batch=64 * LinearWarmup("40%"),
        scaling=SquareRoot(reference=64),
        run_length=f"{8 * DIGITS} samples",
        granule=8,
    )
    *lines, last = lines_of(example)
    losses = check_against(steps_of(plan), lines, every=20)
    assert losses[-1] < losses[0] / 5
    done, planned, samples = map(int, re.findall(r"\d+", last)[:3])
    assert (done, planned, samples) == (plan.total_updates, plan.total_updates, 8 * DIGITS)
    assert float(last.split()[6].rstrip("%")) > 93
