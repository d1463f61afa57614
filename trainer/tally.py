"""Sums over the small gradients of one update, from which its squared norms at two sizes of batch come.

Shapes: G groups, P parameters.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradwire.schedulers.noise_scale import Norms
from gradwire.trainer.errors import NoiseError

Part = Callable[[nn.Parameter], Tensor | None]
"""What of a parameter's gradient is looked at here."""


class Tally:
    """Squared norms of small gradients, weighted and summed by group where the parameters lie, without a host sync.

    A small gradient h belongs to t of the global batch's T targets and is of their summed loss over T. Of its mean
    g = h·T/t the tally needs (t/T)·‖g‖² = T·‖h‖²/t: weighting by targets gives each sample of the batch the same say,
    whatever the sizes, and needs T only at the end.

    Args:
        groups: Parameters by group; one that comes up again counts where it came first.

    Raises:
        NoiseError: there is no parameter.
    """

    def __init__(self, groups: Mapping[str, Sequence[nn.Parameter]]) -> None:
        self.groups = _each_once(groups)
        self.parameters = tuple(parameter for group in self.groups.values() for parameter in group)
        if not self.parameters:
            raise NoiseError("a noise scale needs parameters, and the groups hold none")
        device = self.parameters[0].device
        sizes = torch.tensor([len(group) for group in self.groups.values()])
        owners_P = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        members_GP = torch.arange(len(sizes))[:, None] == owners_P
        self._members_GP = members_GP.to(device, torch.float64)
        self._sums_G = torch.zeros(len(sizes), dtype=torch.float64, device=device)
        self._targets = self._count = self._faults = 0

    def add(self, squares_P: Tensor, targets: int, count: int = 1) -> None:
        """Take in, for each parameter, the squared norms of `count` gradients over `targets` targets together."""
        self._sums_G.addmv_(self._members_GP, squares_P.double(), alpha=count / targets)
        self._targets += targets
        self._count += count

    def spoil(self) -> None:
        """Declare this update's sums wrong."""
        self._faults += 1

    def take(self) -> Tensor:
        """Clear the sums and return them: float64 on the CPU, [G + 3]; to be summed over ranks."""
        counts = torch.tensor([self._targets, self._count, self._faults], dtype=torch.float64)
        sums = torch.cat([self._sums_G.cpu(), counts])
        self._sums_G.zero_()
        self._targets = self._count = self._faults = 0
        return sums

    def is_sound(self, summed: Tensor) -> bool:
        """Whether no rank declared its sums wrong."""
        return summed[-1].item() == 0

    def norms(
        self, summed: Tensor, big: Mapping[str, float], batch_size: int, targets: int, scale: float
    ) -> dict[str, Norms]:
        """Norms by group, from every rank's `take` summed; empty where all lay in a single small gradient."""
        *sums, measured, count, _ = summed.tolist()
        small_size = measured * batch_size / (count * targets) if count else 0.0
        if not 0 < small_size < batch_size:
            return {}
        factor = targets**2 / (measured * scale**2)
        return {
            name: Norms(each * factor, big[name], small_size, float(batch_size))
            for name, each in zip(self.groups, sums, strict=True)
        }

    def big(self, part: Part = lambda parameter: parameter.grad) -> dict[str, float]:
        """Squared norms by group of the gradients that the parameters hold now. Waits for the device once.

        Args:
            part: What of a parameter's gradient is looked at here; None where there is none, or others look at it.
        """
        parts = [(place, part(parameter)) for place, parameter in enumerate(self.parameters)]
        held = [(place, gradient) for place, gradient in parts if gradient is not None and gradient.numel()]
        if not held:
            return dict.fromkeys(self.groups, 0.0)
        norms = torch._foreach_norm([entries(gradient) for _, gradient in held])
        squares = torch.stack([norm.double() for norm in norms]).square()
        sums_G = self._members_GP[:, [place for place, _ in held]] @ squares
        return dict(zip(self.groups, sums_G.tolist(), strict=True))


def entries(gradient: Tensor) -> Tensor:
    """What a gradient holds, without its graph; of a sparse one the values, each place once."""
    gradient = gradient.detach()
    return gradient if gradient.layout is torch.strided else gradient.coalesce().values()


def _each_once(groups: Mapping[str, Sequence[nn.Parameter]]) -> dict[str, tuple[nn.Parameter, ...]]:
    seen: set[nn.Parameter] = set()
    once = {}
    for name, parameters in groups.items():
        once[name] = tuple(dict.fromkeys(parameter for parameter in parameters if parameter not in seen))
        seen.update(parameters)
    return once
