"""Who hangs, from what the ranks published."""

import faulthandler
import threading
import time

import pytest
from torch.distributed import HashStore

from gradwire.trainer.launch.failure import Failure, publish
from gradwire.trainer.launch.watchdog import Progress, Watchdog, verdict


@pytest.fixture(autouse=True)
def no_timer_that_ends_this_process(monkeypatch):
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *arguments, **more: None)


def at(beats=5, phase="forward", update=2, idle=9.0, stacks="", waiting=False, ended=False):
    return Progress(1, beats, phase, update, idle, stacks, waiting, ended)


def test_the_rank_with_fewer_phases_is_named_with_its_stack():
    ranks = {0: at(6, "optimizer", stacks="stack 0"), 1: at(5, stacks="stack 1")}
    failure = verdict(0, 2, ranks, ranks, 3)
    assert "rank 1 hangs in forward of update 2" in failure.message
    assert "stack of rank 1:\nstack 1" in failure.trace and "stack 0" not in failure.trace
    assert failure.exit_code == 1 and failure.kind == "stalled"


def test_among_equals_the_one_that_does_not_wait_is_named():
    ranks = {0: at(waiting=True), 1: at(waiting=True), 2: at(stacks="loop")}
    failure = verdict(0, 3, ranks, ranks, 3)
    assert "rank 2 hangs" in failure.message and "rank 1 hangs" not in failure.message


def test_a_rank_that_does_not_answer_is_named_before_any_other():
    known = {0: at(6), 1: at(4), 2: at(5)}
    failure = verdict(0, 3, {0: known[0], 1: known[1]}, known, 3)
    assert "rank 2 hangs: it does not respond at all" in failure.message and "rank 1 hangs" not in failure.message


def test_a_rank_that_never_reported_and_one_that_left_are_told_apart():
    known = {0: at(), 2: at(ended=True)}
    failure = verdict(0, 3, {0: known[0]}, known, 3)
    assert "rank 1 hangs: it never reported" in failure.message and "rank 2 has already left" in failure.message


def run_watchdog(store, timeout, seconds, beats=0.0, rank=0, world_size=1):
    ends, over = [], threading.Event()
    watchdog = Watchdog(
        store, rank, world_size, timeout, lambda failure: (ends.append(failure), over.set(), watchdog.dismiss())
    )
    watchdog.start()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not over.wait(beats or 0.05):
        if beats:
            watchdog.beat("forward", 1)
    watchdog.stop()
    return ends


def test_no_phase_for_the_timeout_ends_the_run():
    (failure,) = run_watchdog(HashStore(), timeout=0.5, seconds=60)
    assert "rank 0 hangs in start of update 0" in failure.message
    assert "run_watchdog" in failure.trace


def test_beats_keep_it_quiet():
    assert run_watchdog(HashStore(), timeout=4.0, seconds=6, beats=0.1) == []


def test_another_ranks_failure_ends_a_rank_that_does_not_notice():
    store = HashStore()
    publish(store, Failure(1, 0.0, "error", 1, "m"))
    (failure,) = run_watchdog(store, timeout=None, seconds=60, world_size=2)
    assert failure.kind == "peer" and failure.exit_code == 76 and "rank 1 failed" in failure.message


def test_its_own_failure_does_not():
    store = HashStore()
    publish(store, Failure(0, 0.0, "error", 1, "m"))
    assert run_watchdog(store, timeout=None, seconds=5) == []
