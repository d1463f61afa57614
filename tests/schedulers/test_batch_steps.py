import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from gradwire.schedulers import Clock, Plan, PlanError, Schedule, ScheduleError
from gradwire.schedulers.batch import Constant, Doubling, LinearDecay, LinearWarmup, Ramp, Staged


def sizes(plan: Plan) -> list[int]:
    return [step.batch_size for _, step in plan.updates()]


def plan(batch: Schedule, run_length: str = "10_000 samples", **parts: Any) -> Plan:
    return Plan(lr=1.0, batch=batch, run_length=run_length, **parts)


def at(made: Plan, samples: int) -> int:
    return made.at(Clock(samples=samples)).batch_size


def test_gpt3_batches_are_linear_in_tokens_from_32k_to_the_full_batch() -> None:
    made = plan(1600 * LinearWarmup("4e9 tokens", start="32_768 tokens"), "300e9 tokens", context=2048)
    quarter = 1_000_000_000 // 2048
    assert [at(made, n * quarter) for n in (0, 1, 2, 3, 4, 200)] == [16, 412, 808, 1204, 1600, 1600]


def test_a_warmup_starts_where_it_is_told_to() -> None:
    for start in (8, "8 samples", "1024 tokens"):
        assert sizes(plan(64 * LinearWarmup("1000 samples", start), context=128))[0] == 8
    assert sizes(plan(64 * LinearWarmup("1000 samples", 64)))[:5] == [64] * 5


def test_a_start_in_tokens_is_rounded_to_granules() -> None:
    made = plan(1600 * LinearWarmup("4e9 tokens", start="32e3 tokens"), "300e9 tokens", context=2048, granule=8)
    assert at(made, 0) == 16


@pytest.mark.parametrize("updates", [1, 10, 57])
def test_a_warmup_from_a_start_takes_so_many_updates(updates: int) -> None:
    batches = sizes(plan(64 * LinearWarmup(f"{updates} updates", 16), f"{updates + 20} updates"))
    assert len(batches) == updates + 20
    assert batches[0] == 16
    assert batches[updates:] == [64] * 20


def test_a_linear_decay_falls_to_its_floor() -> None:
    made = plan(64 * LinearDecay(floor=0.25), "64_000 samples")
    assert [at(made, 1000 * share) for share in (0, 16, 32, 48)] == [64, 52, 40, 28]
    assert sizes(made)[-2] == 16
    assert sizes(plan(64 * LinearDecay(), granule=8))[-2] == 8


def test_a_linear_decay_with_a_length_joins_what_follows() -> None:
    made = plan((64 * LinearDecay(floor=0.5, length="50%")).then(32 * Constant()))
    assert [at(made, samples) for samples in (0, 2500, 4999, 5000, 9000)] == [64, 48, 32, 32, 32]


def test_megatrons_ramp_takes_126_steps_of_2380_95_samples() -> None:
    made = plan(1024 * Ramp(16, 8, "300_000 samples"), "400_000 samples")
    assert [at(made, samples) for samples in (0, 2380, 2381, 4761, 4762)] == [16, 16, 24, 24, 32]
    assert at(made, 299_999) == 16 + 8 * 125
    assert at(made, 300_000) == 1024
    places = [at(made, samples) for samples in range(300_001)]
    assert sum(before != after for before, after in itertools.pairwise(places)) == 126
    assert set(places) == set(range(16, 1025, 8))


def test_a_ramp_that_starts_at_the_full_batch_is_constant() -> None:
    assert sizes(plan(64 * Ramp(64, 8, "10%"), "640 samples")) == [64] * 10


def test_a_ramp_in_updates_takes_so_many() -> None:
    batches = sizes(plan(64 * Ramp(16, 16, "30 updates"), "50 updates"))
    assert len(batches) == 50
    assert batches[30:] == [64] * 20
    assert sorted(set(batches)) == [16, 32, 48, 64]


def test_a_ramp_can_be_followed() -> None:
    made = plan((64 * Ramp(16, 16, "30%")).then(64 * LinearDecay(floor=0.5)))
    assert [at(made, samples) for samples in (0, 1000, 2000, 3000, 6500)] == [16, 32, 48, 64, 48]


def test_doubling_is_geometric_up_to_the_full_batch() -> None:
    made = plan(64 * Doubling(8, "1000 samples"))
    assert [at(made, samples) for samples in (0, 999, 1000, 2000, 3000, 9000)] == [8, 8, 16, 32, 64, 64]


def test_growth_by_another_factor_is_rounded_to_granules_and_ends_at_the_full_batch() -> None:
    made = plan(100 * Doubling(16, "1000 samples", factor=1.5), granule=4)
    exact = [16 * 1.5**step for step in range(5)]  # 16, 24, 36, 54, 81, and 121.5 is more than the full batch
    assert [at(made, 1000 * step) for step in range(7)] == [4 * round(size / 4) for size in exact] + [100, 100]


def test_stages_hold_from_their_thresholds_on() -> None:
    made = plan(64 * Staged("0:16 1_000:32 5e3:64", "samples"))
    assert [at(made, samples) for samples in (0, 999, 1000, 4999, 5000, 9000)] == [16, 16, 32, 32, 64, 64]


def test_stages_in_tokens() -> None:
    made = plan(1536 * Staged("0:768 250e9:1536", "tokens"), "500e9 tokens", context=4096)
    turn = round(250e9 / 4096)
    assert [at(made, 0), at(made, turn - 1), at(made, turn)] == [768, 768, 1536]
    half = turn / 768
    assert made.total_updates == math.ceil(half) + math.ceil((made.total_samples - math.ceil(half) * 768) / 1536)


def test_stages_may_fall_again() -> None:
    assert [at(plan(32 * Staged("0:32 5000:8 8000:16", "samples")), s) for s in (0, 5000, 8000)] == [32, 8, 16]


def test_stages_are_counted_from_the_start_of_their_piece() -> None:
    made = plan((8 * Constant("1000 samples")).then(64 * Staged("0:16 1000:64", "samples")))
    assert [at(made, samples) for samples in (0, 1000, 1999, 2000)] == [8, 16, 16, 64]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: LinearWarmup("10%", 0), "start of a batch warm-up is a whole number of samples from 1 on; found 0"),
        (lambda: LinearWarmup("10%", -4), "found -4"),
        (lambda: LinearWarmup("10%", True), "start of LinearWarmup is a whole number or .* found True"),
        (lambda: LinearWarmup("10%", "4"), "4 is not a duration: write"),
        (lambda: LinearWarmup("10%", "4 updates"), "a number of samples or tokens, above 0; found '4 updates'"),
        (lambda: LinearWarmup("10%", "0 tokens"), "above 0; found '0 tokens'"),
        (lambda: Ramp(0, 8, "10%"), "start of a ramp is a whole number of samples from 1 on; found 0"),
        (lambda: Ramp(16, -8, "10%"), "increment of a ramp is a whole number of samples from 1 on; found -8"),
        (lambda: Ramp(16, 8, 300_000), "300000 is not a duration: write '300000 updates'"),  # type: ignore[arg-type]
        (lambda: Doubling(0, "10%"), "start of a doubling batch is a whole number"),
        (lambda: Doubling(8, "0 samples"), "keeps each size for some time, above 0; found 0 samples"),
        (lambda: Doubling(8, 1000), "1000 is not a duration"),  # type: ignore[arg-type]
        (lambda: Doubling(8, "10%", factor=1.0), "factor of a doubling batch is a number above 1; found 1.0"),
        (lambda: Doubling(8, "10%", factor=math.nan), "factor of Doubling is a finite number; found nan"),
        (lambda: Staged("0:16 100:8 100:32", "samples"), "rise strictly; found 100 after 100"),
        (lambda: Staged("0:16 200:8 100:32", "samples"), "rise strictly; found 100 after 200"),
        (lambda: Staged("10:16 200:8", "samples"), "the first stage begins at 0; found 10"),
        (lambda: Staged("0:16 -5:8", "samples"), "found '-5:8' in '0:16 -5:8': write stages as in '0:768 250e9:1536'"),
        (lambda: Staged("0:16 nan:8", "samples"), "stages are SEEN:SIZE"),
        (lambda: Staged("0:0", "samples"), "a whole number of samples from 1 on; found '0:0'"),
        (lambda: Staged("0:1.5", "samples"), "found '0:1.5'"),
        (lambda: Staged("0:16 1e9", "samples"), "found '1e9'"),
        (lambda: Staged("", "samples"), "found ''"),
        (lambda: Staged("0:16", "updates"), "unit of Staged is one of 'samples', 'tokens'; found 'updates'"),  # type: ignore[arg-type]
    ],
)
def test_what_no_batch_schedule_can_be_is_refused(wrong: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        wrong()
    assert isinstance(refused.value, ScheduleError) or "duration" in str(refused.value)


@pytest.mark.parametrize(
    "batch, message",
    [
        (64 * LinearWarmup("10%", 128), r"the start of the batch, 128 samples, is above the full batch of 64"),
        (
            64 * LinearWarmup("10%", "2048 tokens"),
            r"start of the batch, 2048 tokens \(128 samples\), is above the full",
        ),
        (64 * LinearWarmup("10%", 12), "the granule 8 does not divide the start of the batch, 12: take 16"),
        (64 * Ramp(128, 8, "10%"), "above the full batch of 64"),
        (64 * Ramp(12, 4, "10%"), "granule 8 does not divide the start of the batch, 12"),
        (64 * Ramp(8, 28, "10%"), "granule 8 does not divide the increment of a ramp, 28: take 32"),
        (
            64 * Ramp(8, 16, "10%"),
            "in steps of 16 a ramp does not reach the full batch of 64: .* that divides 56",
        ),
        (64 * Ramp(8, 8, "20_000 samples"), "Ramp takes 20000 samples, but the run has only 10000 samples"),
        (64 * Doubling(128, "10%"), "above the full batch of 64"),
        (64 * Doubling(12, "10%"), "granule 8 does not divide the start of the batch, 12"),
        (64 * Doubling(8, "40%"), r"takes 3 times 40% \(12000 samples\), but the run has only 10000 samples"),
        (64 * Doubling(8, "5 updates"), "'5 updates' cannot be used inside a batch-size schedule"),
        (64 * Staged("0:32 1000:128", "samples"), r"largest stage has 128 .* set batch.size=128 \(in Python: 128 \* "),
        (64 * Staged("0:16 1000:32", "samples"), "largest stage has 32 samples and the full batch is 64"),
        (64 * Staged("0:12 1000:64", "samples"), "granule 8 does not divide the size of a stage, 12: take 16"),
        (64 * Staged("0:8 10_000:64", "samples"), "the stage of 64 never comes: it begins after 10000 samples"),
        (
            64 * Staged("0:8 32:16 33:64", "tokens"),
            "the stage of 64 never comes: it begins after 2 samples, ",
        ),
    ],
)
def test_what_does_not_fit_into_the_run_is_refused(batch: Schedule, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(batch, granule=8, context=16)
