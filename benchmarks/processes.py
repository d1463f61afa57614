"""Processes for ranks, which processes are ranks, and where they meet."""

import multiprocessing
import re
import secrets
import socket
from pathlib import Path

import psutil

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


def free_port() -> int:
    """A TCP port on which nobody listens, for a process that will.

    The kernel hands it out neither to those who ask for any port, who could have it before that process does, nor to
    clients: one that tries a port of the kernel's range again and again on its own machine can be connected to itself.
    """
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [port for port in range(20_000, 65_536) if not lowest <= port <= highest]
    while not _is_free(port := secrets.choice(ports)):  # not `random`, which tests seed alike
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
