"""Functions run on several real processes joined by gloo; used by tests of everything that communicates."""

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.processes import FORKED
from benchmarks.strategy_runs import spawned
from gradwire.comm import AllReduce, Reducer
from gradwire.comm.group import give_up
from gradwire.trainer.launch.ports import free_port

PATIENCE = 180  # seconds that a collective may take
LONGEST = 400  # seconds that a test on the ranks may take


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Call `function(rank, *arguments)` in new processes with one thread each; an exception fails the test.

    The fixture `ranks` does it in processes that are there already.
    """
    spawned(world_size, function, *arguments)


def _serve(rank: int, size: int, port: int, orders: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    while True:
        function, arguments = orders.recv()
        torch.manual_seed(0)
        failure = None
        try:
            function(rank, *arguments)
        except BaseException:
            failure = traceback.format_exc()
        try:
            left = leave_groups()
        except Exception:  # a test of failures broke them
            left = 1
        orders.send((failure, left))


def leave_groups() -> int:
    """Give up the groups that a test created, and what holds them: their threads wake a hundred times a second.

    Returns:
        How many are left, because they cannot be given up.
    """
    gc.collect()
    for each in gc.get_objects():
        if isinstance(each, Reducer):
            each.detach()
        elif isinstance(each, AllReduce):
            each.close()
    gc.collect()
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            give_up(group)
    gc.collect()
    return len(dist.distributed_c10d._world.pg_map) - 1


class Ranks:
    """A set of processes that call a function together."""

    def __init__(self, size: int) -> None:
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = FORKED.Pipe()
            process = FORKED.Process(target=_serve, args=(rank, size, port, there), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def __call__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [pipe.recv() if pipe.poll(LONGEST) else ("no answer", 0) for pipe in self.pipes]
        failures = [f"rank {rank}: {failure}" for rank, (failure, _) in enumerate(answers) if failure is not None]
        if failures or any(left for _, left in answers):
            self.stop()
        if failures:
            pytest.fail("\n".join(failures), pytrace=False)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)


def pools_of_ranks() -> Iterator[Callable[..., None]]:
    pools: dict[int, Ranks] = {}

    def call(size: int, function: Callable[..., Any], *arguments: Any) -> None:
        if size not in pools or not pools[size].alive:
            pools[size] = Ranks(size)
        pools[size](function, arguments)

    yield call
    for pool in pools.values():
        pool.stop()
