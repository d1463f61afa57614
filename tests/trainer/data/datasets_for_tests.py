"""Datasets as a user might write them."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info


class Numbers:
    """Samples that are their own index; `gather` reads a batch at once."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index

    def gather(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Tensor]:
        return {"index": torch.from_numpy(indices)}


class Augmented:
    """A map-style dataset that draws from all three global generators."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = [torch.rand(()).item(), float(np.random.rand()), random.random()]
        return {"index": index, "noise": torch.tensor(noise, dtype=torch.float64)}


class Broken:
    """Fails at one sample."""

    def __init__(self, size: int, broken: int) -> None:
        self._size, self._broken = size, broken

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Tensor:
        if index == self._broken:
            return self._decode_picture(index)
        return torch.tensor(index)

    def _decode_picture(self, index: int) -> Tensor:
        raise KeyError("picture 13 has no pixels")


class WhichWorker:
    """Samples that say which process read them."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        worker = get_worker_info()
        return -1 if worker is None else worker.id
