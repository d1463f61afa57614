"""The state of an optimizer that steps flat partitions, by the parameters that lie in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.checkpoint import Cut
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.strategies.stretches import Stretch
from gradwire.trainer.strategies.zero import Place


class PartitionedState:
    """Takes an optimizer's state apart by parameter, and puts it together again.

    Args:
        flats: The partitions.
        places: Where the trained parameters lie in them.
        stretches: What each rank holds of the parameters.
    """

    def __init__(self, flats: Sequence[Tensor], places: Mapping[str, Place], stretches: Mapping[str, Stretch]) -> None:
        self._flats = flats
        self._places = places
        self._stretches = stretches

    def of(self, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
        """What an optimizer keeps for this rank's stretch of each parameter; live views where it keeps tensors."""
        flats, found = self._flats, {}
        for name, place in self._places.items():
            flat, stop = flats[place.partition], place.start + self._stretches[name].size
            state = optimizer.state.get(flat) or {}
            if state:
                found[name] = {
                    key: value[place.start : stop] if _lies_along(value, flat) else value
                    for key, value in state.items()
                }
        return found

    def load(self, optimizer: Optimizer, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Give an optimizer this rank's stretches of what was kept of whole parameters.

        Raises:
            StateMismatchError: it is of other parameters, or not of all that are stepped as one.
        """
        places = self._places
        if unknown := sorted(saved.keys() - places.keys()):
            raise StateMismatchError(
                f"the saved optimizer state is of parameters that this model does not train: {', '.join(unknown[:5])}"
            )
        for index, flat in enumerate(self._flats):
            members = {name: place for name, place in places.items() if place.partition == index}
            if missing := [name for name in members if name not in saved]:
                optimizer.state.pop(flat, None)
                if len(missing) < len(members):
                    raise StateMismatchError(
                        f"the saved optimizer state lacks {missing[0]}, and has others of its group"
                    )
                continue
            optimizer.state[flat] = {
                key: self._joined(flat, members, key, [saved[name][key] for name in members])
                for key in next(iter(saved[name] for name in members))
            }

    def _joined(self, flat: Tensor, members: Mapping[str, Place], key: str, values: Sequence[Any]) -> Any:
        """What an optimizer keeps along a partition, from what it kept of each parameter in it."""
        stretches = [self._stretches[name] for name in members]
        if all(
            isinstance(value, Tensor | Cut) and tuple(value.shape) == stretch.shape
            for value, stretch in zip(values, stretches, strict=True)
        ):
            whole = torch.zeros_like(flat, requires_grad=False)
            for place, stretch, value in zip(members.values(), stretches, values, strict=True):
                whole[place.start : place.start + stretch.size] = stretch.of(value)
            return whole
        if any(bool(value != values[0]) for value in values):
            raise StateMismatchError(f"the saved {key} differs within a group of parameters, which ZeRO steps as one")
        return values[0].clone() if isinstance(values[0], Tensor) else values[0]


def _lies_along(value: Any, flat: Tensor) -> bool:
    """Whether an optimizer keeps a value for each element of a partition."""
    return isinstance(value, Tensor) and value.shape == flat.shape
