import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Plan, PlanError
from gradwire.schedulers.batch import Constant, LinearWarmup


def sizes(plan: Plan) -> list[int]:
    return [step.batch_size for _, step in plan.updates()]


def test_constant_is_the_full_batch_throughout() -> None:
    assert sizes(Plan(lr=1.0, batch=64 * Constant(), run_length="200 samples")) == [64, 64, 64, 8]


def test_warmup_is_the_share_of_samples_seen_rounded_to_granules() -> None:
    plan = Plan(lr=1.0, batch=32 * LinearWarmup("64 samples"), run_length="200 samples", granule=4)
    # seen 0 → 0, 4 → 2, 8 → 4, 12 → 6, 20 → 10, 28 → 14, 44 → 22, 68 → 32; halves go to the even count of granules
    assert sizes(plan)[:8] == [4, 4, 4, 8, 8, 16, 24, 32]


@pytest.mark.parametrize("granule", [1, 2, 8])
def test_the_first_update_of_a_warmup_is_one_granule(granule: int) -> None:
    plan = Plan(lr=1.0, batch=64 * LinearWarmup("10%"), run_length="100_000 samples", granule=granule)
    assert sizes(plan)[0] == granule


@pytest.mark.parametrize("updates", [1, 2, 10, 57, 300])
def test_a_warmup_in_updates_takes_so_many(updates: int) -> None:
    plan = Plan(lr=1.0, batch=64 * LinearWarmup(f"{updates} updates"), run_length=f"{updates + 50} updates")
    batches = sizes(plan)
    assert len(batches) == plan.total_updates == updates + 50
    assert batches[updates:] == [64] * 50
    assert batches[: updates - 1] == sorted(batches[: updates - 1])
    assert batches[0] == 1
    assert plan.to_samples(f"{updates} updates") == sum(batches[:updates])


def test_a_warmup_by_share_of_a_run_in_updates_is_that_share_of_its_samples() -> None:
    plan = Plan(lr=1.0, batch=64 * LinearWarmup("20%"), run_length="1000 updates")
    batches = sizes(plan)
    assert len(batches) == 1000
    assert sum(batches) == plan.total_samples
    first_full = sum(batches[: batches.index(64)])
    assert first_full <= plan.to_samples("20%") + 64
    assert first_full >= 0.19 * plan.total_samples


@given(st.integers(1, 200), st.integers(1, 8), st.integers(0, 100), st.integers(1, 5000))
def test_warmup_is_monotone_and_at_least_a_granule(granules: int, granule: int, share: int, total: int) -> None:
    plan = Plan(
        lr=1.0,
        batch=granules * granule * LinearWarmup(f"{share}%"),
        run_length=f"{total} samples",
        granule=granule,
    )
    whole = sizes(plan)[:-1]
    assert whole == sorted(whole)
    assert all(size >= granule and size % granule == 0 for size in whole)


def test_a_horizon_shorter_than_the_batch_warmup_is_refused() -> None:
    with pytest.raises(PlanError, match="LinearWarmup takes 500 updates"):
        Plan(lr=1.0, batch=64 * LinearWarmup("500 updates"), run_length="100 updates")
