import random

import pytest

from gradwire.checkpoint.retry import Retry, is_transient


class Waits:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)

    def retry(self, deadline: float) -> Retry:
        return Retry(deadline=deadline, sleep=self.sleep, clock=lambda: self.now)


def test_pauses_grow_with_jitter_and_stay_below_their_limit() -> None:
    waits, failures = Waits(), iter(range(40))

    def request() -> str:
        if next(failures) < 30:
            raise TimeoutError
        return "done"

    assert waits.retry(1e9).run(request) == "done"
    assert len(waits.pauses) == 30
    assert all(0 <= pause <= min(0.2 * 2**index, 5.0) for index, pause in enumerate(waits.pauses))
    assert len(set(waits.pauses)) == 30


def test_the_last_error_comes_out_before_the_deadline_is_passed() -> None:
    waits = Waits()

    def request() -> None:
        raise TimeoutError(f"at {waits.now}")

    with pytest.raises(TimeoutError, match="at"):
        waits.retry(20.0).run(request)
    assert 10 < waits.now <= 20.0


@pytest.mark.parametrize("error", [FileNotFoundError(), FileExistsError(), PermissionError(), OSError(28, "full")])
def test_lasting_errors_are_not_repeated(error: OSError) -> None:
    waits = Waits()

    def request() -> None:
        raise error

    with pytest.raises(type(error)):
        waits.retry(1e9).run(request)
    assert waits.pauses == []


def test_a_programming_error_is_not_transient() -> None:
    assert not is_transient(TypeError())
    assert not is_transient(ValueError())
    assert is_transient(ConnectionRefusedError())


def test_the_users_random_numbers_are_left_alone() -> None:
    state, waits, failures = random.getstate(), Waits(), iter([TimeoutError(), None])

    def request() -> None:
        if error := next(failures):
            raise error

    waits.retry(10.0).run(request)
    assert random.getstate() == state
