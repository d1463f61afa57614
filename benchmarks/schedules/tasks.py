"""The two things that are learned: handwritten digits by a convolutional network, and source code by a byte decoder."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.trainer.data import Digits, PythonSource
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.losses import loss_for
from gradwire.trainer.models import ConvNet, Decoder

CHUNK = 256


@dataclass(frozen=True)
class Task:
    """Data and a model for them.

    Args:
        data: `digits` or `bytes`.
        width: Width of the model.
        layers: Blocks of each stage, or of the decoder.
        context: Bytes of a sample.
    """

    data: str
    width: int
    layers: int = 1
    context: int = 1

    def model(self, seed: int) -> nn.Module:
        """A fresh model; equal seeds give equal weights."""
        torch.manual_seed(seed)
        if self.data == "digits":
            return ConvNet(width=self.width, blocks=self.layers)
        return Decoder(context=self.context, width=self.width, layers=self.layers, heads=2, kv_heads=2)

    @property
    def train(self) -> Any:
        """The training samples."""
        return _source(self.data, self.context).train

    @property
    def validation(self) -> Any:
        """The validation samples."""
        return _source(self.data, self.context).validation


def digits() -> Task:
    """Half of the 1,797 images train and half validate, so that one image more or less is 0.11 % of error."""
    return Task("digits", width=8)


@cache
def _source(name: str, context: int) -> Digits | PythonSource:
    return Digits(validation_fraction=0.5) if name == "digits" else PythonSource(context)


def indices(data: Any, most: int) -> Ordinals:
    """Evenly spread samples of a data set; the same for every run."""
    return np.linspace(0, len(data) - 1, min(most, len(data))).astype(np.int64)


@torch.no_grad()
def evaluate(model: nn.Module, data: Any, chosen: Ordinals) -> dict[str, float]:
    """Mean loss, and error where there are classes, over the chosen samples."""
    loss = loss_for(model, None)
    model.eval()
    sums: dict[str, float] = {}
    count = 0
    for start in range(0, len(chosen), CHUNK):
        batch: dict[str, Tensor] = data.gather(chosen[start : start + CHUNK])
        count += loss.count(batch)
        for name, value in loss.measures(model, batch).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    model.train()
    means = {name: value / count for name, value in sums.items()}
    return {"loss": means["loss"]} | ({"error": 1 - means["accuracy"]} if "accuracy" in means else {})
