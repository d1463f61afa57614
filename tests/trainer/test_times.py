"""Where the time goes adds up."""

import pytest

from gradwire.trainer.times import Times


class Clock:
    """Stands still until it is told how much time went by."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


def test_the_parts_of_an_update_add_up() -> None:
    clock = Clock()
    times = Times(clock)

    def source():  # type: ignore[no-untyped-def]
        for item in ("a", "b"):
            clock.passes(0.5)
            yield item

    for _ in times.waited(source()):
        with times.on("update"):
            clock.passes(2.0)
            with times.on("journal"):
                clock.passes(0.25)
        times.updated(100)
        with times.on("checkpoint"):
            clock.passes(1.0)
        clock.passes(7.0)  # an evaluation, say
    found = times.take()
    assert found["time/data_ms"] == 500
    assert found["time/checkpoint_ms"] == 1250
    assert found["time/update_ms"] == 3750
    assert found["tokens_per_second"] == pytest.approx(200 / 5.5)


def test_each_reading_begins_anew() -> None:
    clock = Clock()
    times = Times(clock)
    with times.on("update"):
        clock.passes(1.0)
    times.take()
    assert times.take() == {"tokens_per_second": 0.0, "time/update_ms": 0.0, "time/data_ms": 0.0}
