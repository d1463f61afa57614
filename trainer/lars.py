"""LARS: momentum SGD with a learning rate for each layer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.trainer.trust_ratio import dense_gradients, loss_of, scale_by_trust_ratios, with_gradients


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling: λ = η·‖w‖/(‖∇‖ + β‖w‖), v ← m·v + γ·λ·(∇ + βw), w ← w − v.

    Source: You, Gitman & Ginsburg 2017 (arXiv 1708.03888, algorithm 1).
    Vectors and scalars (biases, norms) take λ = 1, as does a layer whose weights or gradient are zero. Gradients are
    read and never written.

    Args:
        params: Parameters, or groups of them with settings of their own.
        lr: Global learning rate γ; layers move by the share lr · trust_coefficient of their norm.
        momentum: Momentum m, from 0 to below 1.
        weight_decay: Weight decay β.
        trust_coefficient: Trust coefficient η.

    Raises:
        ValueError: a setting is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0005,
        trust_coefficient: float = 0.001,
    ) -> None:
        for name, value in (("lr", lr), ("weight_decay", weight_decay), ("trust_coefficient", trust_coefficient)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is a number from 0 on, found {value!r}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum lies from 0 to below 1, found {momentum!r}")
        settings = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one update. `closure`, if given, computes the loss anew and is called first."""
        loss = loss_of(closure)
        for group, layers in with_gradients(self.param_groups):
            self._update(group, layers)
        return loss

    def _update(self, group: dict[str, Any], layers: list[Tensor]) -> None:
        gradients, decay = dense_gradients(layers), group["weight_decay"]
        sizes = torch._foreach_norm(layers)
        slopes = torch._foreach_add(torch._foreach_norm(gradients), torch._foreach_mul(sizes, decay))
        ratios = torch._foreach_div(torch._foreach_mul(sizes, group["trust_coefficient"]), slopes)
        updates = torch._foreach_add(gradients, layers, alpha=decay)
        scale_by_trust_ratios(updates, ratios, layers)
        torch._foreach_mul_(updates, group["lr"])
        velocities = [self._velocity(layer) for layer in layers]
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, updates)
        torch._foreach_sub_(layers, velocities)

    def _velocity(self, layer: Tensor) -> Tensor:
        state = self.state[layer]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(layer, memory_format=torch.preserve_format)
        velocity: Tensor = state["momentum_buffer"]
        return velocity
