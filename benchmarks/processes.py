"""Which processes are ranks."""

import re

import psutil


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
