"""Scikit-learn's images of handwritten digits."""

import importlib.util
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.order import Ordinals, Permutation
from gradwire.trainer.data.parts import check_fraction


class Images:
    """Labeled images in memory.

    Args:
        images: float32 [N, 1, H, W].
        labels: int64 [N].
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self._images[index], "label": self._labels[index]}

    def gather(self, indices: Ordinals) -> dict[str, Tensor]:
        """{"image": float32 [B, 1, H, W], "label": int64 [B]} of the images at `indices` (int64 [B])."""
        chosen = torch.from_numpy(indices)
        return {"image": self._images[chosen], "label": self._labels[chosen]}


class Digits:
    """Scikit-learn's 1,797 images of handwritten digits, 8 × 8 pixels in 0 … 1, ten classes.

    Args:
        validation_fraction: Share of the images that is kept for validation.
        split_seed: Decides which those are.

    Raises:
        DataError: an argument is out of range, or scikit-learn is not installed.
    """

    context = 1
    classes = 10

    def __init__(
        self,
        validation_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.2,
        split_seed: Annotated[int, Range(ge=0)] = 0,
    ) -> None:
        self._fraction = check_fraction(validation_fraction)
        self._seed = split_seed
        self._file = _file()

    @property
    def train(self) -> Images:
        """The training images."""
        return self._split[0]

    @property
    def validation(self) -> Images | None:
        """The validation images, if there are any."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[Images, Images | None]:
        table = np.loadtxt(self._file, delimiter=",")  # [N, 65]: the pixels in 0 … 16 and the digit
        images = torch.from_numpy(table[:, :-1].astype(np.float32) / 16).view(-1, 1, 8, 8)
        labels = torch.from_numpy(table[:, -1].astype(np.int64))
        order = torch.from_numpy(Permutation(len(labels), self._seed)(np.arange(len(labels))))
        kept = round(len(labels) * self._fraction)
        here, there = order[kept:], order[:kept]
        return Images(images[here], labels[here]), Images(images[there], labels[there]) if kept else None


def _file() -> Path:
    """Where scikit-learn keeps the images; not imported, because that takes each rank as long as importing torch."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("data=digits needs scikit-learn: pip install 'gradwire[digits]'")
    file = Path(found.origin).with_name("datasets") / "data" / "digits.csv.gz"
    if not file.is_file():
        raise DataError(f"this scikit-learn has no {file}: data=digits reads the file that scikit-learn 1.9 has there")
    return file
