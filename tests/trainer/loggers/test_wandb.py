"""Against the real wandb, in its offline mode; its run files (a LevelDB log of protocol buffers) are read back."""

import json
import logging
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto import wandb_internal_pb2

from gradwire.trainer.loggers import RunInfo, Wandb
from gradwire.trainer.loggers.wandb import is_logged_in


@pytest.fixture(autouse=True)
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not logged in, whatever the machine's real user is."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def run(
    folder: Path, updates: list[int], status: str = "done", resumed: int | None = None, mode: Any = "online"
) -> None:
    logger = Wandb(mode=mode)
    logger.start(RunInfo(run_dir=folder, name="named", config={"batch": {"size": 16}}, resumed_update=resumed))
    for update in updates:
        logger.log({"update": update, "train/loss": 1.0 / (update + 1), "eval/sample": "text"})
    logger.finish(status)


def payloads(path: Path) -> Iterator[bytes]:
    """The whole entries of a LevelDB log: blocks of 32 KiB, pieces with a header of checksum, length and kind."""
    content, at, entry = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        if at + 7 + length > len(content):  # it is being written
            return
        entry += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole entry, or an entry's last piece
            yield entry
            entry = b""


def records(path: Path) -> list[Any]:
    """The records of a finished run; wandb's own process writes them a moment after `finish` returns."""
    deadline = time.monotonic() + 240
    while True:
        found = [wandb_internal_pb2.Record.FromString(payload) for payload in payloads(path)]
        if of_kind(found, "exit") or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def runs(folder: Path) -> list[list[Any]]:
    return [records(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]


def history(run: list[Any]) -> list[dict[str, Any]]:
    rows = [record.history for record in run if record.WhichOneof("record_type") == "history"]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in rows]


def of_kind(run: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in run if record.WhichOneof("record_type") == kind]


def test_named_but_not_logged_in_it_logs_offline(tmp_path: Path) -> None:
    run(tmp_path, [0, 10, 20])
    (only,) = runs(tmp_path)
    rows = history(only)
    assert [(row["update"], row["_step"]) for row in rows] == [(0, 0), (10, 1), (20, 2)]
    assert [row["train/loss"] for row in rows] == [1.0, 1 / 11, 1 / 21]
    assert rows[0]["eval/sample"] == "text"


def test_name_project_and_configuration_are_told(tmp_path: Path) -> None:
    run(tmp_path, [1])
    (only,) = runs(tmp_path)
    header = of_kind(only, "run")[0]
    assert (header.display_name, header.project) == ("named", "gradwire")
    config = {item.key: json.loads(item.value_json) for item in header.config.update}
    assert config["batch"] == {"size": 16}


def test_charts_have_the_update_as_their_axis(tmp_path: Path) -> None:
    run(tmp_path, [1])
    (only,) = runs(tmp_path)
    metrics = {(m.name or m.glob_name): m.step_metric for m in of_kind(only, "metric")}
    assert metrics["*"] == "update"


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("preempted", 75), ("failed", 1)])
def test_the_run_ends_as_the_training_did(tmp_path: Path, status: str, code: int) -> None:
    run(tmp_path, [1], status)
    (only,) = runs(tmp_path)
    assert [end.exit_code for end in of_kind(only, "exit")] == [code]
    assert len(of_kind(only, "preempting")) == (status == "preempted")


def test_a_resumed_run_continues_the_same_wandb_run(tmp_path: Path) -> None:
    run(tmp_path, [1, 2, 3], "preempted")
    run(tmp_path, [3, 4], resumed=2)
    first, second = runs(tmp_path)
    ids = {of_kind(part, "run")[0].run_id for part in (first, second)}
    assert ids == {(tmp_path / "wandb-run-id").read_text().strip()}
    assert [row["update"] for row in history(second)] == [3, 4]


def test_another_run_directory_is_another_wandb_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run(tmp_path / name, [1])
    assert (tmp_path / "a/wandb-run-id").read_text() != (tmp_path / "b/wandb-run-id").read_text()


def test_a_run_of_a_wandb_sweep_is_the_one_that_the_agent_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("optimizer.lr: {value: 0.05}\n")
    agents = {"SWEEP_ID": "sweep1", "RUN_ID": "abc123", "SWEEP_PARAM_PATH": str(tmp_path / "config.yaml")}
    for name, value in agents.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    wandb.teardown()  # it reads the environment once
    try:
        run(tmp_path, [1])
    finally:
        wandb.teardown()
    (header,) = of_kind(runs(tmp_path)[0], "run")
    assert (header.run_id, header.sweep_id) == ("abc123", "sweep1")
    assert (tmp_path / "wandb-run-id").read_text() == "abc123\n"  # which a resume without the agent goes on with
    assert "optimizer.lr" in [item.key or item.nested_key[0] for item in header.config.update]


def test_auto_does_nothing_where_nobody_is_logged_in(tmp_path: Path) -> None:
    run(tmp_path, [1], mode="auto")
    assert not (tmp_path / "wandb").exists()
    assert not (tmp_path / "wandb-run-id").exists()


@pytest.mark.parametrize(("mode", "expected"), [("auto", "online"), ("online", "online"), ("offline", "offline")])
def test_where_the_user_is_logged_in_it_connects_unless_told_not_to(
    mode: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def init(**settings: Any) -> None:
        seen.append(settings)
        raise RuntimeError("no server")

    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr(wandb, "init", init)
    run(tmp_path, [1], mode=mode)
    assert [(s["mode"], s["resume"]) for s in seen] == [(expected, "allow")]


def test_a_failure_to_start_warns_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**settings: Any) -> None:
        raise wandb.errors.CommError("no way there")

    monkeypatch.setattr(wandb, "init", init)
    with caplog.at_level(logging.WARNING):
        run(tmp_path, [1, 2])
    assert caplog.messages == ["wandb could not start and is left out: no way there"]


def test_a_failure_while_logging_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = Wandb(mode="offline")
    logger.start(RunInfo(run_dir=tmp_path))
    wandb.finish()  # somebody else ended the run
    with caplog.at_level(logging.WARNING):
        logger.log({"update": 1})
        logger.log({"update": 2})
        logger.finish("done")
    assert len([message for message in caplog.messages if "wandb failed and is left out" in message]) == 1


def test_disabled_in_the_environment_means_nothing_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run(tmp_path, [1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "netrc", "expected"),
    [
        ({}, None, False),
        ({"WANDB_API_KEY": "k"}, None, True),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, None, False),
        ({}, "machine api.wandb.ai login user password k\n", True),
        ({}, "machine example.org login wandb password k\n", False),
        ({"WANDB_BASE_URL": "https://wandb.example.org"}, "machine wandb.example.org login user password k\n", True),
        ({"WANDB_BASE_URL": "https://wandb.example.org"}, "machine api.wandb.ai login user password k\n", False),
        ({}, "not a netrc file {{{\n", False),
    ],
)
def test_logged_in_is_who_has_a_key_for_the_server(
    environment: dict[str, str], netrc: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if netrc is not None:
        (tmp_path / "netrc").write_text(netrc)
    assert is_logged_in() is expected
