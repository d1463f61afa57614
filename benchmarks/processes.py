"""Processes for ranks, and which processes are ranks."""

import multiprocessing
import re
from contextlib import suppress

import psutil

# New processes that need not import torch. Their environ is that of the first of them.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["torch._dynamo", "gradwire.trainer.body"])


def ranks_below(pid: int) -> list[psutil.Process]:
    """The ranks among the processes that a process has started: each bears its number in its name.

    One that has ended is none any more, though nobody may have asked for it.
    """
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if re.fullmatch(r"gradwire-\d+", process.name()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # it ended meanwhile
            continue
    return found


def end_all(pid: int) -> None:
    """Kill a process and all that it has started, and wait until they are gone."""
    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    for member in family:
        with suppress(psutil.NoSuchProcess):  # it went with one that was killed before it
            member.kill()
    psutil.wait_procs(family, timeout=240)
