"""The gradients of a sharded model, as each rank holds them, kept and put back."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.comm import CommError, Encoded
from gradwire.comm.recorder import packed, unpacked
from gradwire.trainer.strategies.exchanges import Reduced
from gradwire.trainer.strategies.sharding import like_this, local


class GradientShards:
    """A copy of what this rank holds of an update's gradients, in memory that is used again for the next one.

    Args:
        parameters: Or what an optimizer steps instead; in an order that is the same in every process.
        writes: Whether this rank's copy is handed out; others hold the same where not.
    """

    def __init__(self, parameters: Sequence[Tensor], *, writes: bool) -> None:
        self._parameters = tuple(parameters)
        self._writes = writes
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in self._parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        self._flats = [torch.empty(_held(group), dtype=dtype) for dtype, group in by_dtype.items()]
        self._views = {
            parameter: view
            for flat, group in zip(self._flats, by_dtype.values(), strict=True)
            for parameter, view in zip(group, torch.split(flat, [local(each).numel() for each in group]), strict=True)
        }
        self._presence = b""

    def keep(self) -> None:
        """Copy the gradients that the parameters hold now, zeros for those that have none."""
        self._presence = packed(parameter.grad is not None for parameter in self._parameters)
        if not self._writes:
            return
        for parameter, view in self._views.items():
            view.zero_() if parameter.grad is None else view.copy_(local(parameter.grad).detach().flatten())

    def reduced(self) -> Reduced:
        """What was kept last."""
        shares = [
            Encoded(number, None, ((0, flat.numel()),), flat.view(torch.uint8))
            for number, flat in enumerate(self._flats)
            if self._writes and flat.numel()
        ]
        return Reduced(tuple(shares), tuple(flat.dtype for flat in self._flats), self._presence)

    def put_back(self, reduced: Reduced) -> None:
        """Have the parameters hold what was kept, by this rank or one that holds the same.

        Raises:
            CommError: It is of another model.
        """
        kept = {share.bucket: share.payload for share in reduced.shares}
        present = unpacked(reduced.presence, len(self._parameters))
        for number, flat in enumerate(self._flats):
            payload = kept.get(number, torch.empty(0, dtype=torch.uint8))
            if payload.numel() != flat.nbytes:
                raise CommError(f"gradients of {flat.nbytes} bytes are held here, {payload.numel()} were kept")
            flat.view(torch.uint8).copy_(payload)
        for parameter, is_present in zip(self._parameters, present, strict=True):
            values = self._views[parameter].view(local(parameter).shape).clone() if is_present else None
            parameter.grad = None if values is None else like_this(values, parameter)


def _held(parameters: Sequence[Tensor]) -> int:
    return sum(local(parameter).numel() for parameter in parameters)
