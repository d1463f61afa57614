"""What the layer-wise optimizers LARS and LAMB share: a step length for each layer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.trainer.strategies.sharding import local, whole


def scale_by_trust_ratios(updates: Sequence[Tensor], ratios: Sequence[Tensor], layers: Sequence[Tensor]) -> None:
    """Multiply each layer's update with its ratio, in place; vectors and scalars (biases, norms) keep theirs.

    A ratio that is 0 or not finite, as that of a layer whose weights or update are all zero, counts as 1.

    Args:
        updates: One tensor of any shape a layer.
        ratios: One scalar a layer, on the layer's device.
        layers: The weights; those with fewer than two axes are left out.
    """
    chosen = [index for index, layer in enumerate(layers) if layer.dim() > 1]
    if not chosen:
        return
    ratio = torch.stack([whole(ratios[index]) for index in chosen])
    usable = torch.where((ratio > 0) & torch.isfinite(ratio), ratio, torch.ones_like(ratio))
    torch._foreach_mul_([local(updates[index]) for index in chosen], list(usable.unbind()))


def dense_gradients(layers: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of these layers, which all have one."""
    gradients = [layer.grad for layer in layers if layer.grad is not None]
    return [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]


def with_gradients(groups: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
    """The groups that have layers with gradients, each with these layers."""
    for group in groups:
        layers = [layer for layer in group["params"] if layer.grad is not None]
        if layers:
            yield group, layers


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """The loss that a closure computes anew, with its gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
