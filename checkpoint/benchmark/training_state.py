"""A state like that of a training: weights of a decoder's shapes and the moments of a real AdamW, which move on."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_LAYERS = 12
_DEVIATION = 0.02  # of the weights
_GRADIENT = 1e-3  # deviation of the gradients
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TrainingState:
    """Float32 weights and the state of an AdamW that is applied to them; the same on every rank.

    Args:
        nbytes: About so many in all: 12 for each parameter that is trained, 4 for each that is frozen.
        frozen: Share of the parameters that are frozen, and have no moments.
        device: Where it is.
        seed: Of the initial weights.

    Raises:
        ValueError: nothing would be trained, or there is no room for one number in each tensor.
    """

    def __init__(self, nbytes: int, frozen: float = 0.0, device: torch.device | str = "cpu", seed: int = 0) -> None:
        if not 0 <= frozen < 1:
            raise ValueError(f"the frozen share must be at least 0 and less than 1, found {frozen}")
        count = nbytes / (4 * frozen + 12 * (1 - frozen))
        width = math.isqrt(int(count / _LAYERS / 12))
        trained = round(12 * width * (1 - frozen))
        if width < 1 or trained < 1:
            raise ValueError(f"a state of {nbytes} bytes with {frozen} frozen is too small")
        self._device = torch.device(device)
        self.arguments = (nbytes, frozen, device)
        generator = torch.Generator().manual_seed(seed)
        self._frozen: dict[str, Tensor] = {}
        self._trained: dict[str, nn.Parameter] = {}
        for layer in range(_LAYERS):
            weight = (torch.randn(12 * width, width, generator=generator) * _DEVIATION).to(self._device)
            if trained < 12 * width:
                self._frozen[f"layers.{layer}.frozen"] = weight[trained:].clone()
            self._trained[f"layers.{layer}.weight"] = nn.Parameter(weight[:trained].clone())
            self._trained[f"layers.{layer}.norm"] = nn.Parameter(torch.ones(width, device=self._device))
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=1e-3, foreach=True)
        self.update = 0
        self.advance()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def numbers(self) -> int:
        """How many are trained."""
        return sum(parameter.numel() for parameter in self._trained.values())

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name; the tensors themselves, which the next update changes."""
        found = {**self._frozen, **{name: parameter.detach() for name, parameter in self._trained.items()}}
        for name, parameter in self._trained.items():
            state = self._optimizer.state[parameter]
            found |= {f"{name}.{moment}": state[moment] for moment in _MOMENTS}
        return found

    def gradient(self, update: int) -> Tensor:
        """[numbers] float32, on the CPU: what an update is made of, the same whenever it is asked for."""
        generator = torch.Generator().manual_seed(update)
        return torch.randn(self.numbers, generator=generator) * _GRADIENT

    def advance(self) -> Tensor:
        """Do the next update; its gradient."""
        gradient = self.gradient(self.update + 1)
        self.apply(gradient)
        return gradient

    def apply(self, gradient: Tensor) -> None:
        """Do the next update with a gradient, [numbers] float32."""
        parameters = list(self._trained.values())
        pieces = torch.split(gradient.to(self._device), [parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.update += 1

    def load(self, tensors: Mapping[str, Tensor], update: int) -> None:
        """Become another such state: its tensors by name, after so many updates."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self.update = update

    def differences(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of what is missing, too many, or of other bits in such a state."""
        own = self.tensors()
        names = {*own, *tensors}
        return sorted(name for name in names if not _same(own.get(name), tensors.get(name)))


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.cpu().reshape(-1).view(torch.uint8), other.detach().cpu().reshape(-1).view(torch.uint8))
