"""Losses: a sum over valid targets and the count of them, so that the trainer can divide by the whole global batch.

A global batch is spread over ranks and micro-batches of unequal sizes. Its mean loss is the sum of all target losses
divided by the count of all valid targets; dividing each micro-batch by its own count would weight them wrongly.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.trainer.errors import LossError

IGNORED = -100  # a label with this value is no target (padding, a prompt)


@runtime_checkable
class Loss(Protocol):
    """What the trainer asks of a loss."""

    def count(self, batch: Any) -> int:
        """The number of valid targets in `batch`; it must not need the model."""
        ...

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss summed over the valid targets of `batch`: a 0-dimensional tensor."""
        ...

    def measures(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """For evaluation: sums over the valid targets by name, `loss` among them; each is divided by the count."""
        ...


class NextToken:
    """Cross-entropy of every next token, in nats. Batches are {"input_ids": [B, T], "labels": [B, T]}, already shifted.

    Where rows hold several documents there is "positions" [B, T] as well, which the model is given: each token's place
    in its own document.

    Args:
        label_smoothing: Probability mass spread evenly over the vocabulary while training (0 is none).
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def count(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return self._sum(model, batch, self.label_smoothing)

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"loss": self._sum(model, batch, 0.0)}

    @staticmethod
    def _sum(model: nn.Module, batch: Mapping[str, Tensor], label_smoothing: float) -> Tensor:
        packing = {"positions_BT": batch["positions"]} if "positions" in batch else {}
        logits_BTV = model(batch["input_ids"], **packing)
        return functional.cross_entropy(
            logits_BTV.flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=label_smoothing,
        )


class Classification:
    """Cross-entropy of one label a sample, in nats. Batches are {<inputs>: [B, …], "label": [B]}.

    Args:
        inputs: Name of the batch's entry that the model takes.
        label_smoothing: Probability mass spread evenly over the classes while training (0 is none).
    """

    def __init__(self, inputs: str = "image", label_smoothing: float = 0.0) -> None:
        self.inputs = inputs
        self.label_smoothing = label_smoothing

    def count(self, batch: Mapping[str, Tensor]) -> int:
        return int((batch["label"] != IGNORED).sum())

    def __call__(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return functional.cross_entropy(
            model(batch[self.inputs]).float(),
            batch["label"],
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def measures(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        logits_BC = model(batch[self.inputs]).float()
        label_B = batch["label"]
        loss = functional.cross_entropy(logits_BC, label_B, ignore_index=IGNORED, reduction="sum")
        return {"loss": loss, "accuracy": (logits_BC.argmax(-1) == label_B).sum()}


class PerSample:
    """Adapts a plain function `f(model, batch) -> losses`, one loss a sample (reduction="none"), to the trainer."""

    def __init__(self, function: Callable[[nn.Module, Any], Tensor]) -> None:
        self.function = function

    def count(self, batch: Any) -> int:
        return batch_size(batch)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        losses_B = self.function(model, batch)
        expected = (batch_size(batch),)
        if not isinstance(losses_B, Tensor) or not losses_B.is_floating_point():
            found = f"{losses_B.dtype} tensor" if isinstance(losses_B, Tensor) else type(losses_B).__name__
            raise LossError(
                f"the loss function returned a {found} where a floating-point tensor with one loss a sample, shape "
                f"{expected}, was expected"
            )
        if tuple(losses_B.shape) != expected:
            raise LossError(
                f"the loss function returned a tensor of shape {tuple(losses_B.shape)} where one loss a sample, shape "
                f"{expected}, was expected. Return unreduced losses (reduction='none'); the trainer averages them over "
                "the whole global batch"
            )
        if torch.is_grad_enabled() and not losses_B.requires_grad:
            raise LossError(
                "the loss function returned losses that lead back to no parameter: compute them from the model's "
                "output, without detach, item or no_grad, and leave parameters trainable"
            )
        return losses_B.sum()

    def measures(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"loss": self(model, batch)}


def batch_size(batch: Any) -> int:
    """Samples in a batch: the first axis of the first tensor in a tree of mappings and sequences."""
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    raise LossError(f"a batch must hold at least one tensor with a batch axis, found {type(batch).__name__}")


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


DEFAULT_LOSSES: Mapping[str, Callable[[], Loss]] = {"next_token": NextToken, "classification": Classification}


def loss_for(model: nn.Module, loss: Loss | Callable[[nn.Module, Any], Tensor] | None) -> Loss:
    """The loss to train `model` with: the one given, or the one that the model names as its `default_loss`.

    Raises:
        LossError: no loss was given and the model names none, or one that does not exist.
    """
    if isinstance(loss, Loss):
        return loss
    if loss is not None:
        return PerSample(loss)
    name = str(getattr(model, "default_loss", None))
    if name not in DEFAULT_LOSSES:
        raise LossError(
            f"{type(model).__name__} names no loss of its own (`default_loss` is {name}): give one, "
            f"for example loss={next(iter(DEFAULT_LOSSES))}; there are {', '.join(DEFAULT_LOSSES)}"
        )
    return DEFAULT_LOSSES[name]()


def move(batch: Any, device: torch.device) -> Any:
    """The batch's tensors on `device`; the tree keeps its shape."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_make"):  # a named tuple takes its values one by one
        return batch._make(move(value, device) for value in batch)
    if isinstance(batch, tuple | list):
        return type(batch)(move(value, device) for value in batch)
    return batch
