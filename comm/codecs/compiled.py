"""Functions of tensors that torch.compile fuses on the CPU, and that run as they are anywhere else."""

import shutil
import threading
import types
from collections.abc import Callable

import torch
from torch import Tensor

_TILE = 65_536  # elements that uncompiled functions take at a time on a CPU: what is between two of their steps stays in the cache
_ROWS = 64  # below, calling compiled code costs more than it saves
_OPTIONS = {
    "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,
    "emulate_precision_casts": True,  # a value rounded to bfloat16 and back is the rounded one
}


class Kernel:
    """A function whose arguments are tensors of as many rows, each row by itself; it writes into some of them.

    Compiled once for any number of rows: no guards are checked at a call, so all calls must agree in the arguments'
    dtypes and numbers of axes. Inductor neither contracts multiply-adds nor reorders anything but maxima and sums of
    whole numbers here, so both ways give the same bits (tests/comm/codecs/test_compiled.py).
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._compiled: Callable[..., None] | None = None
        self._lock = threading.Lock()

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    def prepare(self, *example: Tensor) -> None:
        """Compile, unless that was done or cannot be done here, or gives other bits than the function for the example.

        The example's tensors are written to.
        """
        with self._lock:
            if self._compiled is None and example[0].device.type == "cpu" and _compiler():
                self._compiled = _compile(self._function, example)

    def __call__(self, *tensors: Tensor) -> None:
        rows = tensors[0].shape[0]
        if tensors[0].device.type != "cpu":
            self._function(*tensors)
        elif self._compiled is not None and rows >= _ROWS:
            self._compiled(*tensors)
        else:
            self.eager(*tensors)

    def eager(self, *tensors: Tensor) -> None:
        """The function itself, some rows at a time."""
        rows = tensors[0].shape[0]
        step = max(1, _TILE * rows // max(1, tensors[0].numel()))
        for start in range(0, rows, step):
            self._function(*(tensor[start : start + step] for tensor in tensors))


def _compiler() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def _compile(function: Callable[..., None], example: tuple[Tensor, ...]) -> Callable[..., None] | None:
    own = types.FunctionType(function.__code__.replace(), function.__globals__)  # what is compiled is kept with the code
    fast = torch.compile(own, dynamic=True, fullgraph=True, options=_OPTIONS)
    expected = tuple(tensor.clone() for tensor in example)
    try:
        with torch.no_grad():
            function(*expected)
            fast(*example)
    except Exception:  # a compiler that is there and does not work: what is not compiled is only slower
        return None
    return fast if all(_same(*pair) for pair in zip(expected, example, strict=True)) else None


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
