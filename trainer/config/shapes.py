"""Builds a model of shapes: on torch's meta device, without drawing initial weights that no memory would hold."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_RANDOM = ("bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_")


class _Undrawn(TorchFunctionMode):
    """Leaves tensors as they are where they would be filled at random.

    On the meta device torch does that in Python, and imports its compiler for it, which takes seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        module, name = getattr(func, "__module__", None), getattr(func, "__name__", "")
        if module == "torch.nn.init" or name in _RANDOM:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_only() -> Iterator[None]:
    """Within the block tensors are made without memory."""
    with torch.device("meta"), _Undrawn():
        yield
