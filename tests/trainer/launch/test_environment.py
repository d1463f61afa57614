"""What the process is to be, from the variables of the launchers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.launch.environment import (
    CONTROLLER,
    Controller,
    Place,
    cores,
    detect,
    expand_counts,
    expand_nodes,
    place,
    set_threads,
)
from gradwire.trainer.launch.errors import PlacementError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
}


def test_an_ordinary_shell_makes_a_controller():
    assert detect({}) == Controller()


def test_torchrun_makes_a_worker():
    assert detect(TORCHRUN) == Place(3, 8, 1, 2, "a", 29500)


def test_torchruns_restarts_are_counted():
    assert detect(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "2"}).restart == 2


def test_rounds_of_an_elastic_run_are_counted():
    assert detect(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": "0", "GRADWIRE_ROUND": "3"}).restart == 2


def test_our_own_controller_is_known_by_its_process_id():
    assert place(TORCHRUN | {CONTROLLER: "41"}).controller == 41


def test_a_command_that_a_worker_starts_is_ordinary():
    assert detect(TORCHRUN | {CONTROLLER: "41"}) == Controller()


def test_several_tasks_per_node_make_workers():
    port = 20_000 + 707
    assert detect(STEP) == Place(3, 4, 1, 2, "gpu07", port)


def test_one_task_per_node_makes_the_nodes_controller():
    step = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert detect(step) == Controller(hosts=2, host=1, endpoint="gpu07:20707")


def test_tasks_of_a_single_node_meet_on_loopback():
    step = STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4"}
    assert detect(step).address == "127.0.0.1"


@pytest.mark.parametrize("step", [None, "4294967290", "4294967291"])
def test_a_batch_script_or_interactive_shell_is_ordinary(step):
    environ = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}
    assert detect(environ | ({} if step is None else {"SLURM_STEP_ID": step})) == Controller()


def test_steps_of_one_job_meet_at_different_ports():
    assert detect(STEP).port != detect(STEP | {"SLURM_STEP_ID": "1"}).port


def test_a_pod_of_an_indexed_job_is_the_host_of_its_index():
    assert detect({"JOB_COMPLETION_INDEX": "3"}) == Controller(host=3)
    assert detect(TORCHRUN | {"JOB_COMPLETION_INDEX": "3"}).rank == detect(TORCHRUN).rank


def test_torchruns_variables_count_before_slurms():
    assert detect(STEP | TORCHRUN).port == 29500


@pytest.mark.parametrize(("name", "value"), [("RANK", "8"), ("RANK", "x"), ("WORLD_SIZE", "-1"), ("MASTER_PORT", "a")])
def test_nonsense_in_the_variables_is_refused(name, value):
    with pytest.raises(PlacementError, match=name):
        detect(TORCHRUN | {name: value})


def test_a_local_rank_that_nobody_gave_follows_from_the_rank():
    environ = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    assert detect(environ).local_rank == 1


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("a[1-3]", ["a1", "a2", "a3"]),
        ("a[01-03,7],b", ["a01", "a02", "a03", "a7", "b"]),
        ("rack1-n[098-101]", ["rack1-n098", "rack1-n099", "rack1-n100", "rack1-n101"]),
        ("a[1-2].cluster,c5", ["a1.cluster", "a2.cluster", "c5"]),
    ],
)
def test_node_lists_are_expanded(text, names):
    assert expand_nodes(text) == names


@given(st.lists(st.integers(1, 64), min_size=1))
def test_counts_written_one_by_one_are_read_back(counts):
    assert expand_counts(",".join(map(str, counts))) == counts


def test_repeated_counts_are_expanded():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]


def test_threads_are_the_share_of_the_cores_and_at_least_one():
    for processes in (1, 2, 1000):
        environ = {}
        set_threads(environ, processes)
        assert environ == {"OMP_NUM_THREADS": str(max(1, cores() // processes))}


def test_a_thread_count_that_is_set_stays():
    environ = {"OMP_NUM_THREADS": "3"}
    set_threads(environ, 2)
    assert environ == {"OMP_NUM_THREADS": "3"}
