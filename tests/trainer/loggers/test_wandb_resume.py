"""A resumed run at the wandb server: a stand-in on this machine takes what wandb's own client sends, and keeps it."""

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.loggers import RunInfo, Wandb

TRAIN = """
import sys
from pathlib import Path
from gradwire.trainer.loggers import RunInfo, Wandb
def train(mode, updates, resumed, status):
    logger = Wandb(mode=mode)
    logger.start(RunInfo(run_dir=Path(sys.argv[1]), resumed_update=resumed))
    for update in updates:
        logger.log({"update": update, "train/loss": 0.5})
    logger.finish(status)
train(sys.argv[2], [1, 2, 3, 4], None, "preempted")
train(sys.argv[2], [3, 4, 5], 2, "done")
"""


class Server(ThreadingHTTPServer):
    """Knows one user and what was logged: lines of history by the id of their run, at the offsets they were sent to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.history: dict[str, dict[int, dict[str, Any]]] = {}

    def rows(self) -> dict[str, list[tuple[int, int]]]:
        """Step and update of each line, by run."""
        return {
            run: [(lines[at]["_step"], lines[at]["update"]) for at in sorted(lines)]
            for run, lines in self.history.items()
        }

    def append(self, run: str, offset: int, lines: list[str]) -> None:
        self.history[run].update({offset + index: json.loads(line) for index, line in enumerate(lines)})

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        entity = {"id": "e", "name": "me"}
        run = str(variables.get("name"))
        if operation == "RunResumeStatus":
            known = self.bucket(run) if run in self.history else None
            return {"model": {"id": "m", "name": "gradwire", "entity": entity, "bucket": known}}
        if operation == "UpsertBucket":
            new = self.history.setdefault(run, {}) == {}
            project = {"id": "p", "name": "gradwire", "entity": entity}
            return {"upsertBucket": {"bucket": self.bucket(run) | {"project": project}, "inserted": new}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if operation == "Viewer":
            return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        return {}

    def bucket(self, run: str) -> dict[str, Any]:
        lines = self.history[run]
        tail = json.dumps([json.dumps(lines[max(lines)])] if lines else [])
        counts = {"logLineCount": 0, "historyLineCount": len(lines), "eventsLineCount": 0}
        texts = {"summaryMetrics": "{}", "historyTail": tail, "eventsTail": "[]", "config": "{}"}
        started = {"wandbConfig": '{"t": 1}'}  # a run without this key was created, but never ran
        return {"id": "b", "name": run, "displayName": run, "tags": []} | counts | texts | started


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.reply({})

    def do_PUT(self) -> None:
        self.body()
        self.reply({})

    def do_POST(self) -> None:
        request = self.body()
        if "file_stream" in self.path:
            if history := (request.get("files") or {}).get("wandb-history.jsonl"):
                self.server.append(self.path.split("/")[-2], history["offset"], history["content"])
            self.reply({})
        else:
            operation = request.get("operationName") or ""
            self.reply({"data": self.server.answer(operation, request.get("variables") or {})})

    def body(self) -> Any:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        return json.loads(body or b"{}") if self.command == "POST" else None

    def reply(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def call(server: Server, folder: Path, *command: str) -> None:
    """Run a program as a user who is logged in at the server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    user = {"HOME": str(folder), "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "k" * 40}
    quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_X_DISABLE_STATS": "true"}
    subprocess.run(command, cwd=folder, env=ours | user | quiet, check=True, timeout=300)


# The repeated updates 3 and 4 follow those of the first try, under steps of their own.
EXPECTED = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 3), (5, 4), (6, 5)]


@pytest.mark.slow
def test_online_a_resumed_run_continues_and_no_repeated_update_is_dropped(server: Server, tmp_path: Path) -> None:
    call(server, tmp_path, sys.executable, "-c", TRAIN, str(tmp_path), "online")
    assert server.rows() == {(tmp_path / "wandb-run-id").read_text().strip(): EXPECTED}


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
def test_offline_the_folders_of_a_resumed_run_merge_when_synced(server: Server, tmp_path: Path, at_once: bool) -> None:
    call(server, tmp_path, sys.executable, "-c", TRAIN, str(tmp_path), "offline")
    folders = sorted(str(path) for path in tmp_path.glob("wandb/offline-run-*"))
    assert len(folders) == 2
    assert server.rows() == {}
    for paths in [folders] if at_once else [[folder] for folder in folders]:
        call(server, tmp_path, sys.executable, "-m", "wandb", "sync", "--yes", *paths)
    assert server.rows() == {(tmp_path / "wandb-run-id").read_text().strip(): EXPECTED}


def test_an_empty_file_names_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "wandb-run-id").touch()
    logger = Wandb(mode="offline")
    logger.start(RunInfo(run_dir=tmp_path))
    logger.finish("done")
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert folder.name.endswith((tmp_path / "wandb-run-id").read_text().strip())
    assert len((tmp_path / "wandb-run-id").read_text()) == 17
