"""What is due when."""

import pytest

from gradwire.schedulers import Clock, Duration, Plan
from gradwire.trainer.agenda import Agenda, Due
from gradwire.trainer.errors import IntervalError
from gradwire.trainer.settings import Settings

PLAN = Plan(lr=0.1, batch=4, run_length="10 updates")
EVERY_FOURTH, SIXTH = Duration.parse("4 updates"), Duration.parse("6 updates")


def after(updates: int, settings: Settings) -> Due:
    clocks = [Clock(samples=4 * count, updates=count) for count in (updates - 1, updates)]
    return Agenda(settings, PLAN).after(*clocks, PLAN)


def test_intervals_are_told_apart() -> None:
    settings = Settings(log_every=3, evaluate_every=EVERY_FOURTH, check_replicas_every=SIXTH)
    due = {updates: after(updates, settings) for updates in range(1, 10)}
    assert [updates for updates, each in due.items() if each.log] == [3, 6, 9]
    assert [updates for updates, each in due.items() if each.evaluate] == [4, 8]
    assert [updates for updates, each in due.items() if each.check_replicas] == [6]


def test_the_last_update_is_logged_and_evaluated() -> None:
    assert after(10, Settings(log_every=3, evaluate_every=EVERY_FOURTH)) == Due(True, True, False)
    assert after(10, Settings(log_every=3)) == Due(True, False, False)


def test_so_is_the_one_at_which_the_run_stops_before_its_end() -> None:
    settings = Settings(evaluate_every=EVERY_FOURTH, stop_at=SIXTH)
    agenda = Agenda(settings, PLAN)
    assert after(6, settings) == Due(True, True, False)
    assert [agenda.stops(Clock(samples=4 * count, updates=count), PLAN) for count in (5, 6, 10)] == [False, True, False]


def test_only_a_run_that_evaluates_does_so_at_its_start() -> None:
    assert Agenda(Settings(evaluate_every=EVERY_FOURTH), PLAN).evaluates_at_start(Clock())
    assert not Agenda(Settings(evaluate_every=EVERY_FOURTH), PLAN).evaluates_at_start(Clock(samples=4, updates=1))
    assert not Agenda(Settings(), PLAN).evaluates_at_start(Clock())


def test_an_interval_of_less_than_a_sample_is_refused() -> None:
    with pytest.raises(IntervalError, match="less than one sample"):
        Agenda(Settings(evaluate_every=Duration.parse("0.1%")), PLAN)
