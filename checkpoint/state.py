"""What is saved and restored."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class State:
    """The state of a run: dicts, lists and tuples of tensors, numbers, strings, booleans and None.

    Args:
        shared: The same on every rank; the ranks share out the writing. Tensors of which each rank has slices stand in
            it as `Sharded`. Weights that `load_weights` shall find stand under `model`.
        local: This rank's own.
        not_captured: Names of what has state and is in neither; the commit lists them, and the first save warns.
    """

    shared: Mapping[str, Any]
    local: Mapping[str, Any] = field(default_factory=dict)
    not_captured: tuple[str, ...] = ()
