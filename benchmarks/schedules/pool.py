"""Work on processes of one thread each."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Pool(Protocol):
    """Runs a function on many jobs."""

    def map(self, function: Callable[[Job], Answer], jobs: Iterable[Job]) -> list[Answer]:
        """The function's answers, in the order of the jobs."""
        ...


class Here:
    """All in this process."""

    def map(self, function: Callable[[Job], Answer], jobs: Iterable[Job]) -> list[Answer]:
        """The function's answers, in the order of the jobs."""
        return [function(job) for job in jobs]


class Processes:
    """Spread over processes.

    Args:
        executor: The processes.
    """

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def map(self, function: Callable[[Job], Answer], jobs: Iterable[Job]) -> list[Answer]:
        """The function's answers, in the order of the jobs."""
        return list(self._executor.map(function, jobs))


@contextmanager
def pool(processes: int) -> Iterator[Pool]:
    """A pool of so many processes; with one, everything runs in this process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if processes == 1:
        _one_thread()
        yield Here()
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_one_thread) as executor:
        yield Processes(executor)


def _one_thread() -> None:
    torch.set_num_threads(1)
