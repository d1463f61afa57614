"""Number formats of the forward and backward pass: fp32, bf16 (autocast) and fp16 (autocast with a gradient scaler)."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.trainer.errors import UnsupportedPrecisionError

Format = Literal["fp32", "bf16", "fp16"]
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def unsupported(name: Format, device: torch.device) -> str | None:
    """Why `device` cannot train in this format, or None where it can."""
    if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic; precision=fp16 or fp32 run on it"
    return None


def autocast_of(name: Format) -> torch.dtype | None:
    """What operators compute in, where that is not the weights' own type."""
    return _AUTOCAST.get(name)


class Precision:
    """Runs the passes of an update in one number format; weights and optimizer state stay float32.

    Args:
        name: fp32, bf16 or fp16.
        device: Where the passes run.

    Raises:
        UnsupportedPrecisionError: the device lacks the format.
    """

    def __init__(self, name: Format, device: torch.device) -> None:
        reason = unsupported(name, device)
        if reason:
            raise UnsupportedPrecisionError(reason)
        self._device = device
        self._dtype = autocast_of(name)
        self.scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device.type, self._dtype)

    def scaled(self, loss: Tensor) -> Tensor:
        """A (micro-batch's share of the) loss as its backward pass begins from, scaled where the format needs it."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def begin(self) -> None:
        """Where gradients come from elsewhere than a backward pass: have the scale that they came with."""
        if self.scaler is not None:
            self.scaler.scale(torch.zeros((), device=self._device))

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients back to the loss's own scale."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer, *, finite: bool) -> None:
        """Apply the gradients if they are finite on all ranks, and let the scaler learn from whether they were."""
        if finite:
            optimizer.step() if self.scaler is None else self.scaler.step(optimizer)
        elif self.scaler is not None:
            for found in self.scaler._found_inf_per_device(optimizer).values():
                found.fill_(1.0)  # where each rank holds its own part of a gradient, another's may have been infinite
        if self.scaler is not None:
            self.scaler.update()

    @property
    def scale(self) -> float:
        """What losses are multiplied with before their backward pass."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    @property
    def can_lower_the_scale(self) -> bool:
        """Whether gradients that are not finite may come from a scale that is too large, and a smaller one is left."""
        return self.scaler is not None and self.scaler.get_scale() > 1.0

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
