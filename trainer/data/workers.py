"""Processes that read batches ahead."""

import signal
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from gradwire.trainer.data.batches import Batch
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.data.stream import SampleStream

_PREFETCH = 4  # batches that each process reads ahead


class _ByOrdinals(Dataset[Batch]):
    def __init__(self, stream: SampleStream) -> None:
        self._stream = stream

    def __getitem__(self, ordinals: Ordinals) -> Batch | DataError:
        try:
            return self._stream.fetch(ordinals)
        except DataError as error:  # raised where it is handed out, without this process's traceback
            return DataError(str(error))


class Workers:
    """Processes that read batches ahead (torch's data loader), handed out in the order asked for.

    What a process raises is raised here, with the process's own traceback in the message; a DataError as it is.

    Args:
        stream: The samples of the run.
        ordinals: Those of each batch, in order.
        count: How many processes.
    """

    def __init__(self, stream: SampleStream, ordinals: Iterable[Ordinals], count: int) -> None:
        loader: DataLoader[Batch] = DataLoader(
            _ByOrdinals(stream),
            batch_size=None,
            sampler=ordinals,
            num_workers=count,
            prefetch_factor=_PREFETCH,
            worker_init_fn=_leave_signals_to_the_rank,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # otherwise it would draw from the global one
        )
        self._iterator: Any = iter(loader)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._iterator)
        if isinstance(batch, DataError):
            raise batch
        return batch

    def end(self) -> None:
        """End the processes: in good order, and by force where one is stuck in the user's code."""
        self._iterator._shutdown_workers()
        for process in self._iterator._workers:
            if process.is_alive():
                process.kill()
                process.join()


def _leave_signals_to_the_rank(worker: int) -> None:
    """A signal to stop reaches the whole process group, but the rank still needs batches to finish its update."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _as_it_is(batch: Batch) -> Batch:
    return batch
