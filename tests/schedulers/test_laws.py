"""Laws that hold for every schedule, over schedules drawn at random."""

import itertools
import math
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Horizon, Plan, Progress, Schedule, batch, lr

TOTAL = 600  # samples of the runs that are drawn
GRANULES = 12  # of the full batch
FACTORS = st.floats(0, 1)


def samples(first: int, last: int) -> st.SearchStrategy[str]:
    return st.integers(first, last).map(lambda count: f"{count} samples")


def falls(length: str | None = None) -> st.SearchStrategy[Schedule]:
    lengths = st.none() if length is None else st.just(length)
    return st.one_of(
        st.builds(lr.LinearDecay, FACTORS, lengths),
        st.builds(lr.Cosine, FACTORS, lengths),
        st.builds(lr.QuarterCosine, FACTORS, lengths),
        st.builds(lr.Polynomial, st.floats(0.5, 4), FACTORS, lengths),
    )


SHORT_FALLS = samples(1, 200).flatmap(falls)
STEPS = st.builds(
    lr.StepDecay,
    st.lists(st.integers(1, 200), min_size=1, max_size=4, unique=True).map(
        lambda places: [f"{place} samples" for place in sorted(places)]
    ),
    st.floats(0.01, 0.99),
)
CYCLES = st.one_of(
    st.builds(lr.OneCycle, samples(0, 200), FACTORS, FACTORS),
    st.builds(
        lr.WarmupStableDecay, samples(0, 100), samples(0, 100), st.sampled_from(["linear", "sqrt", "cosine"]), FACTORS
    ),
)
RISES = st.builds(lr.Warmup, samples(0, 200), FACTORS)
TAILS = st.one_of(falls(), STEPS, CYCLES, st.just(lr.Constant()), st.builds(lr.InverseSquareRoot, samples(1, 100)))
RATES = st.one_of(
    TAILS,
    RISES,
    st.builds(Schedule.then, RISES, TAILS),
    st.builds(lambda rise, fall, tail: rise.then(fall).then(tail), RISES, SHORT_FALLS, TAILS),
    st.builds(lr.WarmupInverseSquareRoot, samples(1, 200)),
)


@st.composite
def ramps(draw: st.DrawFn, granule: int) -> Schedule:
    step = draw(st.sampled_from([1, 2, 3, 4, 6]))  # each divides the granules of the full batch
    return batch.Ramp(step * granule, step * granule, draw(samples(0, 200)))


@st.composite
def stages(draw: st.DrawFn, granule: int) -> Schedule:
    sizes = draw(st.permutations([GRANULES, *draw(st.lists(st.integers(1, GRANULES), max_size=4))]))
    count = len(sizes) - 1
    thresholds = [0, *sorted(draw(st.lists(st.integers(1, 200), min_size=count, max_size=count, unique=True)))]
    text = " ".join(f"{start}:{size * granule}" for start, size in zip(thresholds, sizes, strict=True))
    return batch.Staged(text, "samples")


@st.composite
def batches(draw: st.DrawFn) -> tuple[Schedule, int]:
    """A batch schedule, multiplied with its full batch, and its granule."""
    granule = draw(st.integers(1, 4))
    starts = st.none() | st.integers(1, GRANULES).map(lambda start: start * granule)
    with_length = st.one_of(
        st.builds(batch.LinearWarmup, samples(0, 200), starts),
        st.builds(batch.LinearDecay, FACTORS, samples(1, 200)),
        st.builds(batch.Constant, samples(0, 200)),
        ramps(granule),
    )
    tails = st.one_of(
        with_length,
        st.builds(batch.LinearDecay, FACTORS),
        st.builds(
            batch.Doubling,
            st.integers(2, GRANULES).map(lambda start: start * granule),
            samples(1, 30),
            st.floats(1.2, 4),
        ),
        stages(granule),
    )
    joined = st.builds(Schedule.then, with_length, tails)
    return GRANULES * granule * draw(tails | joined), granule


def planned(drawn: tuple[Schedule, int], rate: Schedule) -> Plan:
    schedule, granule = drawn
    return Plan(lr=2.0 * rate, batch=schedule, granule=granule, run_length=f"{TOTAL} samples")


@given(batches())
def test_every_batch_is_whole_granules_and_all_sum_to_the_samples(drawn: tuple[Schedule, int]) -> None:
    plan = planned(drawn, lr.Constant())
    sizes = [step.batch_size for _, step in plan.updates()]
    granule = drawn[1]
    assert all(granule <= size <= GRANULES * granule and size % granule == 0 for size in sizes[:-1])
    assert 1 <= sizes[-1] <= GRANULES * granule
    assert sum(sizes) == plan.total_samples == TOTAL
    assert len(sizes) == plan.total_updates
    assert max(sizes) == plan.largest_batch


@given(RATES, batches())
def test_every_rate_lies_between_0_and_its_peak(rate: Schedule, drawn: tuple[Schedule, int]) -> None:
    assert all(0 <= step.lr <= 2.0 for _, step in planned(drawn, rate).updates())


@given(RATES, batches(), st.lists(st.integers(0, TOTAL + 100), min_size=1, max_size=20), st.randoms())
def test_a_plan_is_a_pure_function_of_the_clock(
    rate: Schedule, drawn: tuple[Schedule, int], places: list[int], random: Random
) -> None:
    plan, again = planned(drawn, rate), planned(drawn, rate)
    clocks = [Clock(samples=place, updates=3 + random.randrange(9), skipped=random.randrange(3)) for place in places]
    first = {clock: plan.at(clock) for clock in clocks}
    random.shuffle(clocks)
    list(again.updates())
    assert all(again.at(clock) == first[clock] == plan.at(Clock(samples=clock.samples)) for clock in clocks)


def pieces(values: list[float], untils: list[float]) -> list[list[float]]:
    """The values from every place up to where they are promised to be monotone, without those that lie in another."""
    ends = [max(math.ceil(min(until, len(values))), place + 1) for place, until in enumerate(untils)]
    farther = [place == 0 or end > ends[place - 1] for place, end in enumerate(ends)]
    return [values[place:end] for place, end in enumerate(ends) if farther[place]]


def is_monotone(values: list[float]) -> bool:
    ups = [after - before for before, after in itertools.pairwise(values)]
    return all(up >= -1e-15 for up in ups) or all(up <= 1e-15 for up in ups)


@settings(max_examples=200)
@given(batches())
def test_batch_sizes_are_monotone_where_they_promise_it(drawn: tuple[Schedule, int]) -> None:
    plan = planned(drawn, lr.Constant())
    sizes = [plan._sizes.at(place) for place in range(TOTAL)]
    horizon = plan._horizon
    promised = [drawn[0].monotone_until(Progress(place, place, TOTAL, horizon)) for place in range(TOTAL)]
    assert all(map(is_monotone, pieces([float(size) for size in sizes], promised)))


@settings(max_examples=200)
@given(RATES, st.integers(1, 9))
def test_rates_are_monotone_where_they_promise_it(rate: Schedule, size: int) -> None:
    horizon = planned((size * batch.Constant(), 1), rate)._horizon
    places = [Progress(place, min(place + size, TOTAL), TOTAL, horizon) for place in range(TOTAL)]
    values = [rate.value(at) for at in places]
    assert all(map(is_monotone, pieces(values, [rate.monotone_until(at) for at in places])))


@given(RATES)
def test_a_rate_has_decayed_to_itself_or_not_at_all(rate: Schedule) -> None:
    places = [Progress(place, place + 1, TOTAL, Horizon(TOTAL)) for place in range(TOTAL)]
    decays = [rate.decay(at) for at in places]
    assert all(decay in (1.0, rate.value(at)) for decay, at in zip(decays, places, strict=True))
    assert all(0 <= decay <= 1 for decay in decays)


@given(samples(1, 200), FACTORS, falls() | st.just(lr.Constant()) | st.builds(lr.InverseSquareRoot, samples(50, 100)))
def test_a_rise_joins_a_fall_without_a_step(length: str, start: float, fall: Schedule) -> None:
    schedule, horizon = lr.Warmup(length, start).then(fall), Horizon(TOTAL)
    join = horizon.to_samples(length)
    before, after = (schedule.value(Progress(place, place, TOTAL, horizon)) for place in (join - 1, join))
    assert after == 1
    assert 1 - before <= (1 - start) / join + 1e-12


@given(SHORT_FALLS, st.integers(1, 9), falls())
def test_falls_join_at_the_floor(fall: Schedule, peak: int, tail: Schedule) -> None:
    length = Horizon(TOTAL).to_samples(str(fall.length))
    floor: float = fall.floor  # type: ignore[attr-defined]
    joined = (peak * fall).then(peak * floor * tail)
    place = Progress(length, length, TOTAL, Horizon(TOTAL))
    assert math.isclose((peak * fall).value(place), joined.value(place), abs_tol=1e-12)


@given(st.integers(1, 200), st.integers(1, GRANULES), FACTORS)
def test_batch_pieces_join_without_a_step(length: int, start: int, floor: float) -> None:
    rise = GRANULES * batch.LinearWarmup(f"{length} samples", start)
    schedule = rise.then(GRANULES * batch.LinearDecay(floor))
    places = [Progress(place, place, TOTAL, Horizon(TOTAL)) for place in range(TOTAL)]
    values = [schedule.value(at) for at in places]
    steepest = max((GRANULES - start) / length, GRANULES * (1 - floor) / (TOTAL - length))
    assert max(abs(after - before) for before, after in itertools.pairwise(values)) <= steepest + 1e-9
    assert values[length] == GRANULES
