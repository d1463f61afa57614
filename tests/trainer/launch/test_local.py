"""Real launches on this host: how they end, what the screen shows, what the run directory records."""

import signal
import time

import psutil
import pytest
from omegaconf import OmegaConf

from gradwire.trainer.launch.ports import free_port

pytestmark = pytest.mark.slow


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=300)
    return not alive


@pytest.fixture(scope="module")
def done(starting):
    """A run to its end."""
    command = starting()
    assert command.wait() == 0
    return command


def test_a_run_ends_with_0_and_says_where_it_is(done):
    assert done.status["status"] == "done" and done.status["exit_code"] == 0
    name = done.run_dir.name
    assert f"run       runs/{name} (done)" in done.out and f"run       runs/{name}\n" in done.out
    assert f"gradwire evaluate runs/{name}" in done.out and f"gradwire resume runs/{name}" in done.out
    assert done.err == ""


def test_the_run_directory_holds_the_configuration_and_the_overrides(done):
    assert OmegaConf.load(done.run_dir / "config.yaml").updates == 5
    assert (done.run_dir / "overrides.txt").read_text() == "an=override\n"


def test_every_rank_has_its_log_and_only_rank_0_shows(done):
    assert "rank 0: update 4" in done.out and "rank 1" not in done.out
    assert "rank 0: update 4" in done.log(0) and "rank 1: update 4" in done.log(1)


@pytest.mark.parametrize("rank", [0, 1])
def test_threads_are_the_machines_share_of_each_process(done, rank):
    share = max(1, len(psutil.Process().cpu_affinity()) // 2)
    assert f"threads {share} " in done.log(rank)


@pytest.fixture(scope="module")
def excepted(starting):
    """A run in which a rank raises, that could be restarted; and its workers."""
    command = starting(plan={"1:2": "raise"}, launch={"restarts": 3})
    command.wait_for("update 0")
    workers = command.workers()
    assert command.wait() == 1
    assert gone(workers)
    return command


def test_an_exception_in_a_rank_ends_all_with_1_and_its_own_traceback(excepted):
    assert excepted.err.count("Traceback") == 1 and "ZeroDivisionError: planted in this rank" in excepted.err
    assert "rank 1 failed" in excepted.err and "in act" in excepted.err and "peer" not in excepted.err
    assert excepted.status["status"] == "failed" and excepted.status["exit_code"] == 1


def test_an_exception_is_not_restarted(excepted):
    assert "Restarting" not in excepted.out


def test_the_earliest_of_two_exceptions_is_shown(start):
    command = start(plan={"0:2": "raise after another", "1:2": "raise"})
    assert command.wait() == 1
    assert "rank 1 failed" in command.err and "rank 0 failed" not in command.err
    assert "ZeroDivisionError" in command.log(0)


def test_a_rank_that_ignores_a_failure_is_killed(start):
    command = start(plan={"0:2": "raise", "1:2": "deaf"})
    command.wait_for("acting raise")
    workers = command.workers()
    assert command.wait() == 1
    assert gone(workers)


def test_a_damaged_checkpoint_ends_with_3(start):
    command = start(plan={"1:2": "checkpoint"})
    assert command.wait() == 3
    assert "update 7 is damaged" in command.err and command.status["exit_code"] == 3


def test_a_crash_in_native_code_shows_the_stack_from_the_log(start):
    command = start(plan={"0:2": "segfault"})
    assert command.wait() == 1
    assert "rank 0 was killed by SIGSEGV" in command.err and "in string_at" in command.err
    assert "Segmentation fault" in command.log(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_ranks_save_and_ends_with_75(start, number):
    command = start(updates=10_000, pause=0.05)
    command.wait_for("update 2")
    command.process.send_signal(number)
    assert command.wait() == 75
    assert "stopped" in command.log(0) and "stopped" in command.log(1)
    assert command.status["status"] == "preempted" and command.status["exit_code"] == 75
    assert f"gradwire resume runs/{command.run_dir.name}" in command.out


def test_a_signal_to_one_worker_stops_all_of_them_with_75(start):
    command = start(updates=10_000, pause=0.05)
    command.wait_for("update 2")
    command.workers()[1].send_signal(signal.SIGTERM)
    assert command.wait() == 75


def test_a_second_interrupt_stops_now(start):
    command = start(updates=10_000, pause=0.05, plan={"1:4": "deaf"}, launch={"restarts": 1})
    command.wait_for("update 3")
    workers = command.workers()
    command.process.send_signal(signal.SIGINT)
    command.wait_for("heard it and stays", rank=1)  # two that come at once are one
    assert command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 1
    assert gone(workers)
    assert "SIGINT came twice" in command.err


def test_who_does_not_save_within_the_grace_period_is_killed(start):
    command = start(updates=10_000, pause=0.05, plan={"1:4": "deaf"}, launch={"grace": "1 second"})
    command.wait_for("update 3")
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() == 1
    assert "launch.grace (1 s) is over" in command.err


def test_a_signal_before_any_worker_runs_ends_with_75(start):
    command = start(launch={"hosts": 2, "endpoint": f"127.0.0.1:{free_port()}"})
    time.sleep(4)  # it waits for the other host
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() in (75, -signal.SIGTERM)


def test_a_signal_to_every_process_while_the_workers_start_ends_with_75(start):
    command = start(updates=10_000, pause=0.05)
    deadline = time.monotonic() + 240
    while len(command.workers()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in (command.process, *command.workers()):  # as Slurm does
        process.send_signal(signal.SIGTERM)
    assert command.wait() == 75


def test_workers_die_with_a_controller_that_is_killed(start):
    command = start(updates=10_000, pause=0.05)
    command.wait_for("update 2")
    workers = command.workers()
    assert len(workers) == 2
    command.process.kill()
    assert gone(workers)


def test_a_killed_rank_is_restarted_from_the_newest_checkpoint(start):
    command = start(plan={"1:3": "kill"}, launch={"restarts": 1})
    assert command.wait() == 0
    assert "rank 1 was killed by SIGKILL" in command.out and "Restarting" in command.out
    assert "start 3 restore latest-if-any" in command.log(1)
    assert command.log(0).count("update 4") == 1


def test_a_killed_rank_without_restarts_ends_with_1(start):
    command = start(plan={"1:3": "kill"})
    assert command.wait() == 1
    assert "rank 1 was killed by SIGKILL" in command.err and "Connection" not in command.err


def test_a_stopped_rank_is_named_by_the_watchdog(start):
    command = start(plan={"1:2": "stop"}, launch={"watchdog": "6 seconds"})
    assert command.wait() == 1
    assert "rank 1 hangs: it does not respond at all" in command.err
    assert "rank 0 is in forward of update 2" in command.err
    assert "all_reduce" in command.err


def test_rank_0_stopped_is_named_by_another_rank(start):
    command = start(plan={"0:2": "stop"}, launch={"watchdog": "6 seconds"})
    assert command.wait() == 1
    assert "rank 0 hangs: it does not respond at all" in command.err


def test_a_rank_in_an_endless_loop_is_named_with_its_stack(start):
    command = start(plan={"1:2": "spin"}, launch={"watchdog": "6 seconds"})
    assert command.wait() == 1
    assert "rank 1 hangs in forward of update 2" in command.err
    assert "in spin_forever" in command.err and "rank 0 hangs" not in command.err


def test_a_rank_stuck_in_native_code_is_named_with_its_stack(start):
    command = start(plan={"1:2": "hold the interpreter"}, launch={"watchdog": "6 seconds"})
    assert command.wait() == 1
    assert "rank 1 hangs: native code holds its interpreter" in command.err
    assert "in act" in command.err


def test_slow_progress_is_no_stall(start):
    command = start(updates=7, pause=1.5, launch={"watchdog": "9 seconds"})
    assert command.wait() == 0


def test_a_run_in_use_is_refused(start):
    first = start(updates=10_000, pause=0.05, run={"name": "test", "dir": "same"})
    first.wait_for("update 1")
    second = start(run={"name": "test", "dir": "same"})
    assert second.wait() == 2
    assert "already holds a run" in second.err
    assert first.process.poll() is None
