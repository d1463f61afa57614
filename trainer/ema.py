"""An exponential moving average of the weights, for evaluation and for what is shipped in the end."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.strategies import Single, Strategy
from gradwire.trainer.strategies.sharding import local


class MovingAverage:
    """average ← decay·average + (1 − decay)·weights after every update; buffers are taken as they are.

    Polyak & Juditsky 1992. The average starts at the initial weights.

    Args:
        model: The model whose parameters and buffers are followed.
        decay: Share of the old average that stays at each update, in (0, 1).
        strategy: Knows what this rank holds of the model; everything where None.
    """

    def __init__(self, model: nn.Module, decay: float, strategy: Strategy | None = None) -> None:
        if not 0.0 < decay < 1.0:
            raise ValueError(f"ema is the decay of the average and must lie between 0 and 1, found {decay}")
        self.decay = decay
        self._model = model
        self._strategy = strategy or Single()
        self._average = {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        return self._strategy.tensors(self._model)

    @torch.no_grad()
    def update(self) -> None:
        """Take the model's present weights into the average."""
        now = self._tensors()
        floating = [name for name, tensor in self._average.items() if tensor.is_floating_point()]
        parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        followed = [name for name in floating if name in parameters]
        torch._foreach_lerp_(
            [local(self._average[name]) for name in followed], [local(now[name]) for name in followed], 1.0 - self.decay
        )
        for name in self._average.keys() - set(followed):
            local(self._average[name]).copy_(local(now[name]))

    @contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Within the block the model computes with the averaged weights; afterwards with its own again, bit for bit."""
        own = {name: tensor.clone() for name, tensor in self._tensors().items()}
        self._write(self._average)
        try:
            yield
        finally:
            self._write(own)

    def _write(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                local(tensor).copy_(local(values[name]))

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._average)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state.keys() != self._average.keys():
            odd = sorted(state.keys() ^ self._average.keys())[:5]
            raise StateMismatchError(f"the saved average and the model differ in their tensors: {', '.join(odd)}")
        for name, tensor in self._average.items():
            local(tensor).copy_(local(self._strategy.placed(name, state[name], tensor)))
