import pytest

from gradwire.checkpoint.policy import Policy, Standing


def after(*outcomes: str) -> Standing:
    standing = Standing()
    for outcome in outcomes:
        standing = standing.after_success() if outcome == "saved" else standing.after_failure(full=outcome == "full")
    return standing


def taken(standing: Standing) -> tuple[bool, int, bool]:
    return standing.journal, standing.widening, standing.paused


def test_raise_lets_no_failure_pass() -> None:
    assert not Policy("raise").goes_on(after("failed"))


def test_warn_lets_so_many_failures_in_a_row_pass() -> None:
    policy = Policy("warn", failures=2)
    assert policy.goes_on(after("failed", "failed"))
    assert not policy.goes_on(after("failed", "failed", "full"))
    assert policy.goes_on(after("failed", "failed", "saved", "failed", "failed"))


def test_a_full_store_drops_the_journal_then_widens_the_interval_then_pauses() -> None:
    assert taken(after()) == (True, 1, False)
    assert taken(after("full")) == (False, 1, False)
    assert taken(after("full", "full")) == (False, 2, False)
    assert taken(after("full", "full", "full")) == (False, 2, True)
    assert taken(after("full", "full", "full", "full")) == (False, 2, True)


def test_other_failures_take_no_measure() -> None:
    assert taken(after("failed", "failed", "failed")) == (True, 1, False)


def test_each_success_takes_the_last_measure_back() -> None:
    assert taken(after("full", "full", "full", "saved")) == (False, 2, False)
    assert taken(after("full", "full", "full", "saved", "saved", "saved", "saved")) == (True, 1, False)


def test_a_standing_says_what_is_done() -> None:
    assert str(after("failed")) == ""
    assert str(after("full", "full")) == "the journal is dropped; the interval between snapshots is doubled"


def test_values_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match=r"on_failure must be 'raise' or 'warn', found 'ignore'"):
        Policy("ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="failures must be at least 1, found 0"):
        Policy("warn", failures=0)
