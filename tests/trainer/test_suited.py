"""A recommended batch goes together with every batch schedule that gradwire has, or says why it is another one."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Duration, Plan
from gradwire.schedulers.batch import Doubling, LinearWarmup, Ramp, Staged
from gradwire.schedulers.coupling import CriticalBatchWarmup, Seesaw
from gradwire.schedulers.lr import Cosine
from gradwire.schedulers.measured import NoiseScaleBatch
from gradwire.trainer import plan_table
from gradwire.trainer.assemble import component
from gradwire.trainer.batch_size import refusal
from gradwire.trainer.config import compose, validate
from gradwire.trainer.recommendation import Recommendation, Setup, command, recommend
from gradwire.trainer.rehearsal import Speed
from gradwire.trainer.suited import suited

NAMES = sorted(file.stem for file in Path("conf/batch").glob("*.yaml") if file.stem != "base")
WRITTEN = {  # what the files leave open, and runs in which they are accepted
    "critical": ["batch.schedule.start=8"],
    "noise_scale": ["batch.schedule.start=8"],
    "grow_instead_of_decay": ["batch.schedule.start=8"],
    "seesaw": ["batch.schedule.start=8"],
    "gpt3": ["run.length=20e9 tokens", "batch.size=512"],
}
SPEEDS = [Speed(size, 1.0, rate, rate, 3) for size, rate in ((1, 100.0), (2, 180.0), (4, 196.0), (8, 200.0))]


def advised(typed: Sequence[str], noise_scale: float, world_size: int = 2) -> Recommendation:
    valid = validate(compose(typed, None))
    config = valid.config
    plan = plan_table.planned(config).plan
    setup = Setup(
        batch_size=config["batch"]["size"],
        granule=config["batch"]["granule"],
        world_size=world_size,
        total_samples=plan.total_samples,
        lr=config["optimizer"]["lr"],
        betas=(0.9, 0.95),
        scaling=None,
        reference=None,
        has_warmup=True,
        length_in_updates=False,
        schedule=component(config["batch"]["schedule"], ()),
        measures=plan.measures,
    )
    return recommend(setup, SPEEDS, noise_scale, lambda overrides: refusal(command(typed, overrides)))


@pytest.mark.parametrize("noise_scale", [3.0, 40.0, 700.0])
@pytest.mark.parametrize("name", NAMES)
def test_the_recommended_command_is_accepted_whatever_the_batch_schedule(name: str, noise_scale: float) -> None:
    typed = ["run.length=100_000 samples", f"batch={name}", "launch.processes=2", *WRITTEN.get(name, [])]
    found = advised(typed, noise_scale)
    assert found.batch_size == {3.0: 8, 40.0: 32, 700.0: 512}[noise_scale]  # none of these needs another batch
    plan = plan_table.planned(validate(compose(shlex.split(command(typed, found.overrides))[2:], None)).config).plan
    assert plan.largest_batch == found.batch_size


def test_a_batch_that_the_thresholds_do_not_lead_to_gives_way_to_the_nearest_that_they_do() -> None:
    typed = ["run.length=100_000 samples", "batch=critical", "batch.schedule.start=4", "batch.size=64"]
    typed += ["batch.schedule.thresholds=[10%,20%,30%,40%]", "launch.processes=2"]
    found = advised(typed, 1.0)  # 8 would do, and four doublings lead to 16 at least
    assert found.batch_size == 16 and "batch.schedule.start=1" in found.overrides
    assert "the nearest to 8 that goes: " in found.advice[1].reason and "from 4 to 8" in found.advice[1].reason


def test_a_coupling_s_rate_moves_with_its_first_batch_where_it_holds() -> None:
    typed = ["run.length=100_000 samples", "batch=seesaw", "batch.schedule.start=16", "batch.size=64"]
    typed += ["launch.processes=2"]
    kept = advised(typed, 128.0)  # the first batch stays, and the rate with it
    assert kept.batch_size == 128 and not [word for word in kept.overrides if word.startswith("optimizer.lr")]
    moved = advised(typed, 8.0)  # 16 of 64 is 2 of 8
    assert "batch.schedule.start=2" in moved.overrides
    rate = validate(compose(typed, None)).config["optimizer"]["lr"]
    assert moved.lr == pytest.approx(rate * (2 / 16) ** 0.5, rel=1e-3)
    assert "16 samples" in next(advice.reason for advice in moved.advice if advice.name == "learning rate")


def test_one_rank_that_measures_makes_two_passes_of_its_first_batch() -> None:
    typed = ["run.length=100_000 samples", "batch=noise_scale", "batch.schedule.start=4", "launch.processes=1"]
    assert advised(typed, 64.0, world_size=1).micro_batch == 2


GRANULES = st.integers(1, 4)
DOUBLED = st.integers(0, 5)


@given(GRANULES, DOUBLED, DOUBLED, st.integers(1, 3))
def test_what_a_schedule_names_moves_in_proportion(granule: int, before: int, after: int, steps: int) -> None:
    full, size = 16 * granule << before, 16 * granule << after
    rules = [
        Ramp(full // 4, full // 4, "25%"),
        Doubling(full >> steps, "10%"),
        LinearWarmup("10%", full // 2),
        Seesaw(full >> steps),
        Staged(f"0:{full // 4} 100:{full // 2} 200:{full}", "samples"),
        CriticalBatchWarmup(full >> steps, ["10%", "20%", "30%"][:steps]),
    ]
    for rule in rules:
        moved = suited(rule, full, size, granule)
        changed = type(rule)(
            **{name: getattr(rule, name) for name in rule.__dataclass_fields__ if name != "parsed"} | dict(moved)
        )
        made = Plan(lr=1.0 * Cosine(), batch=size * changed, granule=granule, run_length=f"{100 * size} samples")
        assert made.largest_batch == size
    assert suited(rules[1], full, size, granule) == {"start": size >> steps}
    assert suited(rules[0], full, size, granule) == {"start": size // 4, "increment": size // 4}


@given(GRANULES, st.integers(1, 30), st.integers(1, 30), st.integers(1, 200))
def test_a_ramp_reaches_any_batch(granule: int, start: int, steps: int, size: int) -> None:
    rule = Ramp(start * granule, granule, "25%")
    moved = suited(rule, (start + steps) * granule, size * granule, granule)
    first, increment = int(moved["start"]), int(moved["increment"])
    assert first % granule == increment % granule == 0 < increment
    assert (size * granule - first) % increment == 0 <= size * granule - first


def test_a_measured_batch_does_not_begin_with_one_sample() -> None:
    assert suited(NoiseScaleBatch(4), 64, 8, 1) == {"start": 2}
    assert suited(CriticalBatchWarmup(4), 64, 8, 1) == {"start": 2}


def test_a_first_batch_in_tokens_stays_in_tokens() -> None:
    assert suited(LinearWarmup("10%", Duration(32_000, "tokens")), 64, 16, 1) == {"start": "8000 tokens"}
