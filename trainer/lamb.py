"""LAMB: Adam with a step length for each layer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.trainer.trust_ratio import dense_gradients, loss_of, scale_by_trust_ratios, with_gradients


class LAMB(Optimizer):
    """Layer-wise adaptive moments: u = m̂/(√v̂ + ε) + λw with Adam's moments, w ← w − η·‖w‖/‖u‖·u.

    Source: You et al. 2020 (arXiv 1904.00962, algorithm 2, φ the identity). Vectors and scalars (biases, norms) take
    w ← w − η·u, as does a layer whose weights or update are zero. Gradients are read and never written.

    Args:
        params: Parameters, or groups of them with settings of their own.
        lr: Learning rate η: the share of its norm by which a layer moves.
        betas: Decay of the averages of the gradient and of its square, each from 0 to below 1.
        eps: ε.
        weight_decay: Weight decay λ.

    Raises:
        ValueError: a setting is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is a number from 0 on, found {value!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas lie from 0 to below 1, found {betas!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Make one update. `closure`, if given, computes the loss anew and is called first."""
        loss = loss_of(closure)
        for group, layers in with_gradients(self.param_groups):
            self._update(group, layers)
        return loss

    def _update(self, group: dict[str, Any], layers: list[Tensor]) -> None:
        updates = self._adam(group, layers)
        torch._foreach_add_(updates, layers, alpha=group["weight_decay"])
        ratios = torch._foreach_div(torch._foreach_norm(layers), torch._foreach_norm(updates))
        scale_by_trust_ratios(updates, ratios, layers)
        torch._foreach_mul_(updates, group["lr"])
        torch._foreach_sub_(layers, updates)

    def _adam(self, group: dict[str, Any], layers: list[Tensor]) -> list[Tensor]:
        """m̂/(√v̂ + ε), the moments moved on by the present gradients."""
        (beta1, beta2), gradients = group["betas"], dense_gradients(layers)
        states = [self._state(layer) for layer in layers]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        counts = [state["step"].add_(1).item() for state in states]
        roots = torch._foreach_sqrt(torch._foreach_div(squares, [1 - beta2**count for count in counts]))
        torch._foreach_add_(roots, group["eps"])
        return list(torch._foreach_div(torch._foreach_div(means, [1 - beta1**count for count in counts]), roots))

    def _state(self, layer: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[layer]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, where reading it waits for nothing
            state["exp_avg"] = torch.zeros_like(layer, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(layer, memory_format=torch.preserve_format)
        return state
