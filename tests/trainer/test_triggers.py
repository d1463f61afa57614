import pytest

from gradwire.schedulers import Clock, Duration, Plan
from gradwire.trainer.errors import IntervalError
from gradwire.trainer.triggers import Every, WallClock


def plan() -> Plan:
    return Plan(lr=0.1, batch=8, run_length="100 updates", context=4)


def at(updates: int) -> Clock:
    return Clock(samples=8 * updates, tokens=32 * updates, updates=updates)


def due_updates(interval: str) -> list[int]:
    every = Every(Duration.parse(interval), plan())
    return [update for update in range(1, 31) if every.due(at(update - 1), at(update))]


def test_updates_are_counted_as_updates() -> None:
    assert due_updates("10 updates") == [10, 20, 30]


def test_other_units_are_converted_to_samples() -> None:
    assert due_updates("80 samples") == due_updates("320 tokens") == due_updates("10%") == [10, 20, 30]


def test_an_interval_that_the_batch_does_not_divide_is_due_when_it_is_passed() -> None:
    assert due_updates("100 samples") == [13, 25]


def test_none_is_never_due() -> None:
    assert not Every(None, plan()).due(at(0), at(100))


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(IntervalError, match="less than one sample"):
        Every(Duration.parse("0 updates"), plan())


def test_the_wall_clock_is_due_once_an_interval() -> None:
    clock = WallClock(0.0)
    assert clock.due()
    patient = WallClock(1e9)
    assert not patient.due()
    assert not WallClock(None).due()
