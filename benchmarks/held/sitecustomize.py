"""A run that is to be interrupted waits for that: Python imports this as it starts where this folder is on PYTHONPATH.

See `held` in benchmarks/runs.py.
"""

import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

MODULE = "gradwire.trainer.loggers.metrics"  # not imported here: it takes torch, which the controller does without


class Finder(importlib.abc.MetaPathFinder):
    """Changes the module once it is there."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_hold(module: Any) -> None:
            execute(module)
            hold(module.MetricsFile)

        spec.loader.exec_module = execute_and_hold  # type: ignore[method-assign]
        return spec


def hold(metrics_file: Any) -> None:
    """Have the first start of a run wait once the line behind the one that is waited for is written."""
    start, log = metrics_file.start, metrics_file.log
    update, mark = json.loads(os.environ["HELD_AFTER"])

    def start_once(self: Any, info: Any) -> None:
        start(self, info)
        self.held, self.seen = False, False
        with suppress(FileExistsError):
            info.run_dir.with_name(f"{info.run_dir.name}-held").touch(exist_ok=False)
            self.held = True

    def log_and_wait(self: Any, record: Any) -> None:
        log(self, record)
        if self.held and self.seen:
            wait_until_told()
        self.seen = self.seen or (record["update"] >= update and (mark is None or mark in record))

    metrics_file.start, metrics_file.log = start_once, log_and_wait


def wait_until_told() -> None:
    """Until this rank is told to stop; who is killed does not wait any longer either."""
    stop = signal.getsignal(signal.SIGTERM).__self__  # type: ignore[union-attr]
    while not stop.requested:
        time.sleep(0.01)


sys.meta_path.insert(0, Finder())
