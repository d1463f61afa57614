import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Duration, DurationError
from gradwire.schedulers.duration import _UNITS


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("10_000 samples", 10_000, "samples"),
        ("2e9 tokens", 2_000_000_000, "tokens"),
        ("500 updates", 500, "updates"),
        ("1 update", 1, "updates"),
        ("3 epochs", 3, "epochs"),
        ("0.5 epochs", 0.5, "epochs"),
        ("10%", 10, "%"),
        ("2.5 %", 2.5, "%"),
        ("10 minutes", 10, "minutes"),
        ("1 Hour", 1, "hours"),
        (" 30seconds ", 30, "seconds"),
        ("0 samples", 0, "samples"),
    ],
)
def test_a_number_and_a_unit_make_a_duration(text: str, amount: float, unit: str) -> None:
    duration = Duration.parse(text)
    assert (duration.amount, duration.unit) == (amount, unit)


def test_whole_amounts_are_ints() -> None:
    assert isinstance(Duration.parse("2e9 tokens").amount, int)
    assert isinstance(Duration.parse("2.5 epochs").amount, float)


def test_a_duration_passes_through_parse() -> None:
    duration = Duration(3, "epochs")
    assert Duration.parse(duration) is duration


@given(
    st.one_of(st.integers(0, 10**18), st.floats(0, 9e18, allow_nan=False)),
    st.sampled_from([unit for unit in _UNITS if unit != "%"]),
)
def test_text_round_trips(amount: float, unit: str) -> None:
    duration = Duration(amount, unit)  # type: ignore[arg-type]
    assert Duration.parse(str(duration)) == duration


@given(st.floats(0, 100))
def test_percent_text_round_trips(amount: float) -> None:
    assert Duration.parse(str(Duration(amount, "%"))) == Duration(amount, "%")


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_duration_error(text: str) -> None:
    try:
        duration = Duration.parse(text)
    except DurationError as error:
        assert "is not a duration" in str(error)
    else:
        assert duration.amount >= 0
        assert math.isfinite(duration.amount)


@pytest.mark.parametrize("bare", [500, "500", " 500 "])
def test_a_bare_number_is_told_the_units(bare: object) -> None:
    with pytest.raises(DurationError, match=r"^500 is not a duration: write '500 updates', '500 samples'"):
        Duration.parse(bare)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [None, True, ["1 epoch"], {}])
def test_another_type_is_told_the_form(other: object) -> None:
    with pytest.raises(DurationError, match="write a number and a unit, as in '500 updates'"):
        Duration.parse(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("500 upates", "'500 updates'"),
        ("500 steps", "'500 updates'"),
        ("3 epoks", "'3 epochs'"),
        ("2h", "'2 hours'"),
        ("10 min", "'10 minutes'"),
        ("10 percent", "'10%'"),
        ("1e9 token's", "'1e9 tokens'"),
        ("64 examples", "'64 samples'"),
    ],
)
def test_a_wrong_unit_is_offered_the_right_one(text: str, offered: str) -> None:
    with pytest.raises(DurationError) as caught:
        Duration.parse(text)
    assert f"did you mean {offered}?" in str(caught.value)


def test_an_unlike_unit_is_told_all_units() -> None:
    with pytest.raises(DurationError, match="'parsecs' is not a unit; units are samples, tokens, updates, epochs, %"):
        Duration.parse("3 parsecs")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("-3 epochs", "must not be negative"),
        ("nan samples", "finite number"),
        ("inf samples", "finite number"),
        ("1e999 samples", "finite number"),
        ("1__0 samples", "'1__0' is not a number"),
        ("1.2.3 samples", "'1.2.3' is not a number"),
        ("120%", "at most 100%"),
        ("epochs", "write a number and a unit"),
        ("", "write a number and a unit"),
    ],
)
def test_an_impossible_amount_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(DurationError, match=reason):
        Duration.parse(text)


def test_seconds_are_for_wall_clock_durations() -> None:
    assert [Duration.parse(text).seconds for text in ("30 seconds", "10 minutes", "1.5 hours")] == [30.0, 600.0, 5400.0]
    assert Duration.parse("1 minute").is_wall_clock
    assert not Duration.parse("1 update").is_wall_clock
    with pytest.raises(DurationError, match="'5 updates' is not wall-clock time"):
        _ = Duration.parse("5 updates").seconds
