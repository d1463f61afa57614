"""Processes for ranks, which processes are ranks, and where they meet."""

import multiprocessing
import re

import psutil

from gradwire.trainer.launch.ports import free_port

__all__ = ["FORKED", "free_port", "ranks_below"]
# New processes that need not import torch. Their environ is that of the first of them.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "gradwire.trainer.body"])


def ranks_below(pid: int) -> list[psutil.Process]:
    """The ranks among the processes that a process has started: each bears its number in its name."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if re.fullmatch(r"gradwire-\d+", process.name()):
                found.append(process)
        except psutil.Error:  # it ended meanwhile
            continue
    return found
