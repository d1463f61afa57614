"""Real processes joined by gloo, started once and used by many tests."""

import gc
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gradwire.comm.group import give_up
from tests.comm.netlab import lab_ranks, netlab

__all__ = ["lab_ranks", "netlab"]  # fixtures

PATIENCE = 60  # seconds that a collective, and a test on the ranks, may take


def _serve(rank: int, size: int, port: int, orders: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    while True:
        function, arguments = orders.recv()
        torch.manual_seed(0)
        try:
            function(rank, *arguments)
            orders.send(None)
        except BaseException:
            orders.send(traceback.format_exc())
        leave_groups()


def leave_groups() -> None:
    """Give up the groups that a test created: each keeps a thread that wakes a hundred times a second."""
    gc.collect()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            give_up(group)
    gc.collect()


class Ranks:
    """A set of processes that call a function together."""

    def __init__(self, size: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = mp.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, port, there), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def __call__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [pipe.recv() if pipe.poll(PATIENCE) else "no answer" for pipe in self.pipes]
        failures = [f"rank {rank}: {answer}" for rank, answer in enumerate(answers) if answer is not None]
        if failures:
            self.stop()
            pytest.fail("\n".join(failures), pytrace=False)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[..., None]]:
    """`ranks(size, function, *arguments)` calls `function(rank, *arguments)` on `size` ranks."""
    yield from pools_of_ranks()


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Callable[..., None]]:
    """The same with processes that other files do not use, for tests whose groups outlive them."""
    yield from pools_of_ranks()


def pools_of_ranks() -> Iterator[Callable[..., None]]:
    pools: dict[int, Ranks] = {}

    def call(size: int, function: Callable[..., Any], *arguments: Any) -> None:
        if size not in pools or not pools[size].alive:
            pools[size] = Ranks(size)
        pools[size](function, arguments)

    yield call
    for pool in pools.values():
        pool.stop()
