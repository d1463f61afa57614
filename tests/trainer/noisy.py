"""Models whose gradient noise is known or easily computed, and updates of them as a trainer runs them."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.schedulers.noise_scale import Norms
from gradwire.trainer.models import Decoder
from gradwire.trainer.noise import Meter
from gradwire.trainer.strategies import Single, Strategy

CPU = torch.device("cpu")
SMALL = {"vocabulary": 13, "context": 8, "width": 16, "layers": 2, "heads": 2, "kv_heads": 1}


Pass = tuple[Callable[[], Tensor], int]


class Planted(nn.Module):
    """A linear model: the gradient of a sample's output is the sample, drawn with known mean and covariance."""

    def __init__(self, width: int = 400) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(width))
        self.second = nn.Parameter(torch.zeros(width))

    def forward(self, x_BD: Tensor) -> Tensor:
        return x_BD @ torch.cat([self.first, self.second])

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"first": [self.first], "second": [self.second]}

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        """Gaussian samples whose coordinates depend on their neighbors."""
        loose = torch.randn(samples, 2 * len(self.first), generator=generator)
        return self.means() + self.deviations() * (0.8 * loose + 0.6 * loose.roll(1, 1))

    def means(self) -> Tensor:
        return torch.cat([torch.full_like(self.first, 0.5), torch.full_like(self.second, 1.0)]).detach()

    def deviations(self) -> Tensor:
        return torch.linspace(0.5, 3.0, 2 * len(self.first))

    def noise_scales(self) -> dict[str, float]:
        """Trace of the covariance over the mean's squared norm, by group and of all."""
        noises, gradients = self.deviations().square(), self.means().square()
        half = len(self.first)
        parts = {"first": slice(None, half), "second": slice(half, None), "all": slice(None)}
        return {name: float(noises[part].sum() / gradients[part].sum()) for name, part in parts.items()}


def planted_passes(model: nn.Module, planted: Planted, sizes: Sequence[int], generator: torch.Generator) -> list[Pass]:
    def one(size: int) -> Pass:
        x_BD = planted.draw(size, generator)
        return lambda: model(x_BD).sum(), size

    return [one(size) for size in sizes]


def measured(
    strategy: Strategy, model: nn.Module, meter: Meter, passes: Sequence[Pass], batch: int
) -> dict[str, Norms]:
    """The norms of one update: this rank's passes (summed loss, targets), as a trainer runs them."""
    mine = torch.tensor([sum(count for _, count in passes)], dtype=torch.float64)
    targets = int(strategy.start_sum(mine).wait())
    model.zero_grad()
    for index, (loss, count) in enumerate(passes):
        with (
            nullcontext() if index == len(passes) - 1 else strategy.accumulate(),
            meter.micro_batch(count),
        ):
            (loss() / targets).backward()  # type: ignore[no-untyped-call]
    return meter.norms(strategy.start_sum(meter.local()).wait(), meter.big(), batch, targets)


def decoder(**sizes: int | bool) -> Decoder:
    torch.manual_seed(0)
    return Decoder(**{**SMALL, **sizes})  # type: ignore[arg-type]


def ids(samples: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 13, (samples, 9), generator=torch.Generator().manual_seed(seed))


def text_loss(model: nn.Module, ids_BT: Tensor) -> Tensor:
    return functional.cross_entropy(model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="sum")


def text_passes(model: nn.Module, sizes: Sequence[int]) -> list[Pass]:
    parts = ids(sum(sizes)).split(list(sizes))
    return [(lambda part=part: text_loss(model, part), 8 * len(part)) for part in parts]  # type: ignore[misc]


def text_norms(model: nn.Module, meter: Meter, sizes: Sequence[int]) -> dict[str, Norms]:
    return measured(Single(CPU), model, meter, text_passes(model, sizes), sum(sizes))


def own_norm(model: nn.Module, parameters: Sequence[nn.Parameter], ids_BT: Tensor) -> float:
    """Squared norm of the mean loss's gradient, by plain autograd."""
    loss = text_loss(model, ids_BT) / ids_BT[:, 1:].numel()
    gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    return sum(float(gradient.double().square().sum()) for gradient in gradients if gradient is not None)
