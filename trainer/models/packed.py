"""Whether a model keeps the documents of a row apart."""

import torch
from torch import Tensor, nn

from gradwire.trainer.models.errors import ModelError

_LENGTH = 4  # tokens of each of the two documents that are tried


@torch.no_grad()
def check_keeps_apart(model: nn.Module) -> None:
    """Try two short documents in one row: the second must come out as it does alone.

    Args:
        model: Takes ids and `positions_BT`, and gives logits; on the device where its weights are.

    Raises:
        ModelError: it takes no positions, or the second document sees the first.
    """
    device = next(model.parameters()).device
    ids_BT = torch.arange(2 * _LENGTH, device=device)[None] % getattr(model, "vocabulary", 2 * _LENGTH)
    positions_BT = ids_BT.new_tensor([[*range(_LENGTH), *range(_LENGTH)]])
    training = model.training
    model.eval()
    try:
        alone, together = model(ids_BT[:, _LENGTH:]), model(ids_BT)
        packed = _packed(model, ids_BT, positions_BT)
    finally:
        model.train(training)
    error, seen = _largest(packed[:, _LENGTH:] - alone), _largest(together[:, _LENGTH:] - alone)
    if error > max(0.01 * seen, 1e-4 * _largest(alone)):
        raise ModelError(
            f"{_name(model)} does not keep the documents of a row apart: logits of the second are {error:.2g} off what "
            "they are alone. Packed data needs a model with attention that goes by positions"
        )


def _packed(model: nn.Module, ids_BT: Tensor, positions_BT: Tensor) -> Tensor:
    try:
        logits_BTV: Tensor = model(ids_BT, positions_BT=positions_BT)
    except TypeError as error:
        if "positions_BT" not in str(error) and "position_ids" not in str(error):
            raise
        raise ModelError(
            f"{_name(model)} takes no positions ({error}): packed data needs a model whose forward(ids_BT, "
            "positions_BT) keeps the documents of a row apart"
        ) from error
    return logits_BTV


def _largest(difference: Tensor) -> float:
    return difference.abs().max().item()


def _name(model: nn.Module) -> str:
    inner = getattr(model, "model", model)
    return type(inner).__name__
