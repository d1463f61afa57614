"""Runs a function on several real processes joined by gloo; used by tests of everything that communicates."""

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Call `function(rank, *arguments)` in `world_size` processes with one thread each; an exception fails the test."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_enter, args=(world_size, port, function, arguments), nprocs=world_size)  # type: ignore[no-untyped-call]


def _enter(rank: int, world_size: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world_size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    function(rank, *arguments)
    dist.barrier()
    os._exit(0)  # at once: on its way down, an interpreter can abort over gloo's threads
