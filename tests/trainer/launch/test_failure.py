"""Failures: recorded once, told across processes, the first one first."""

import json

import pytest
from torch.distributed import HashStore

from gradwire.trainer.launch import failure as failures
from gradwire.trainer.launch.errors import LaunchError, RunNotFoundError
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure


def fail(rank=0, time=0.0, kind="error", code=1, message="m", trace="t", brief=False):
    return Failure(rank, time, kind, code, message, trace, brief)


def test_the_earliest_failure_is_the_first():
    assert failures.first_of([fail(0, 2.0), fail(1, 1.0), fail(2, 3.0)]).rank == 1


def test_an_echo_of_another_ranks_failure_is_never_the_first():
    assert failures.first_of([fail(0, 1.0, "peer"), fail(1, 2.0)]).rank == 1


def test_echoes_alone_still_give_a_first():
    assert failures.first_of([fail(1, 2.0, "peer"), fail(0, 2.0, "peer")]).rank == 0


def test_json_reads_back():
    assert Failure.from_json(fail(3, 1.5).to_json()) == fail(3, 1.5)


def test_the_error_file_is_torchs_format_and_reads_back(tmp_path):
    failures.write_error_file(tmp_path / "error.json", fail(2, 12.7))
    record = json.loads((tmp_path / "error.json").read_text())
    assert record["message"] == {"message": "m", "extraInfo": {"py_callstack": "t", "timestamp": "12"}}
    assert failures.read_error_file(tmp_path / "error.json") == fail(2, 12.7)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"gradwire": {"rank": 1}}', "\x00"])
def test_a_file_that_is_no_error_file_is_none(tmp_path, text):
    (tmp_path / "error.json").write_text(text)
    assert failures.read_error_file(tmp_path / "error.json") is None


def test_only_the_first_publication_counts():
    store = HashStore()
    assert failures.published(store) is None
    assert failures.publish(store, fail(1)) and not failures.publish(store, fail(2))
    assert failures.published(store) == fail(1)


def test_a_broken_link_is_a_lost_peer_also_as_a_cause():
    gloo = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:12960")
    wrapped = ValueError("bucket 3")
    wrapped.__cause__ = gloo
    assert failures.is_lost_peer(gloo) and failures.is_lost_peer(wrapped)
    assert failures.describe_error(gloo, 0).exit_code == ExitCode.PEER_LOST


def test_an_error_of_the_model_is_no_lost_peer():
    assert not failures.is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_exit_codes_of_errors():
    from gradwire.checkpoint.errors import DamagedCheckpoint, MissingObject, StoreFull
    from gradwire.trainer.config import ConfigError, Mistake

    assert failures.exit_code_of(ValueError()) == 1
    assert failures.exit_code_of(LaunchError()) == 2
    assert failures.exit_code_of(RunNotFoundError()) == 3
    assert failures.exit_code_of(ConfigError([Mistake("a", "b", "c")])) == 2
    assert failures.exit_code_of(DamagedCheckpoint()) == 3 and failures.exit_code_of(MissingObject()) == 3
    assert failures.exit_code_of(StoreFull()) == 1


def test_gradwires_own_errors_are_shown_by_their_message_others_by_their_traceback():
    assert failures.describe_error(LaunchError("say this"), 0).render() == "say this"
    assert "Traceback" not in failures.describe_error(LaunchError("say this"), 0).render()
    try:
        raise ZeroDivisionError("x")
    except ZeroDivisionError as error:
        assert failures.describe_error(error, 4).render().startswith("rank 4 failed:\n\nTraceback")


def test_a_killed_rank_is_named_with_its_signal_and_the_end_of_its_log():
    text = failures.killed(2, -11, "last words").render()
    assert "rank 2 was killed by SIGSEGV" in text and text.endswith("last words")


def test_a_dump_by_faulthandler_means_a_hang_in_native_code():
    log = "update 3\nTimeout (0:10:00)!\nThread 0x1:\n  File a, line 3 in f"
    failure = failures.silent(1, 1, log)
    assert failure.kind == "stalled" and "native code" in failure.message
    assert failure.trace.startswith("Timeout")


def test_a_collective_of_ours_that_failed_names_no_cause_of_its_own():
    from gradwire.comm import CollectiveError

    failure = failures.describe_error(CollectiveError("rank 1 waited for rank 0: Connection reset by peer"), 1)
    assert (failure.kind, failure.brief) == ("peer", True)
    killed = failures.killed(0, -9, "")
    assert failures.first_of([failure, killed]) is killed
