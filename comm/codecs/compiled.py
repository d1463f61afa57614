"""Functions of tensors that torch.compile's Inductor fuses on the CPU, and that run as they are anywhere else."""

import shutil
import threading
import warnings
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

_TILE = 65_536  # elements that uncompiled functions take at a time on a CPU: what lies between two steps stays cached
_ROWS = 64  # below, calling compiled code costs more than it saves
_Form = tuple[tuple[torch.dtype, torch.Size], ...]  # of arguments, apart from the number of rows


class Kernel:
    """A function whose arguments are tensors of as many rows, each row by itself; it writes into some of them.

    Compiled for rows of given sizes, any number of them: no guards are checked at a call, and the tensors may lie
    anywhere. Inductor neither contracts multiply-adds nor reorders anything but maxima and sums of whole numbers here,
    so both ways give the same bits, but for the sign of NaN; prepare checks that on its example, the tests on more.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._compiled: dict[_Form, Callable[..., None] | None] = {}
        self._lock = threading.Lock()

    def compiled(self, *tensors: Tensor) -> bool:
        """Is there compiled code for rows like these?"""
        return self._compiled.get(_form(tensors)) is not None

    def prepare(self, *example: Tensor) -> None:
        """Compile for rows like the example's, unless that was done, or cannot be done here. Writes to the example."""
        with self._lock:
            form = _form(example)
            if form not in self._compiled and example[0].device.type == "cpu" and _compiler():
                self._compiled[form] = _compile(self._function, example)

    def __call__(self, *tensors: Tensor) -> None:
        if tensors[0].device.type != "cpu":
            self._function(*tensors)
            return
        compiled = self._compiled.get(_form(tensors)) if tensors[0].shape[0] >= _ROWS else None
        (compiled or self.eager)(*tensors)

    def eager(self, *tensors: Tensor) -> None:
        """The function itself, some rows at a time."""
        rows = tensors[0].shape[0]
        step = max(1, _TILE * rows // max(1, tensors[0].numel()))
        for start in range(0, rows, step):
            self._function(*(tensor[start : start + step] for tensor in tensors))


def _form(tensors: tuple[Tensor, ...]) -> "_Form":
    return tuple((tensor.dtype, tensor.shape[1:]) for tensor in tensors)


def _compiler() -> bool:
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def _compile(function: Callable[..., None], example: tuple[Tensor, ...]) -> Callable[..., None] | None:
    expected = tuple(tensor.clone() for tensor in example)
    try:
        with torch.no_grad():
            function(*expected)
            fast = _fused(function, example)
            fast(*example)
    except Exception as reason:
        warnings.warn(f"{function.__qualname__} runs uncompiled, several times slower: {reason}", stacklevel=2)
        return None
    if not all(_same(*pair) for pair in zip(expected, example, strict=True)):
        warnings.warn(f"{function.__qualname__} runs uncompiled: compiled it gives other bits", stacklevel=2)
        return None
    return fast


def _fused(function: Callable[..., None], example: tuple[Tensor, ...]) -> Callable[..., None]:
    """Inductor's code for the function, for any number of rows.

    Traced and compiled here instead of by torch.compile, which would compile again, for seconds amid a step, wherever
    a global setting differs (gradients or autocast on, deterministic algorithms, another number of threads, …).
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    traced = []
    for tensor in example:
        axes = [DimDynamic.DUCK] + [DimDynamic.STATIC] * (tensor.dim() - 1)
        traced.append(mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=axes)))
    with mode, enable_python_dispatcher():
        graph = make_fx(lambda *tensors: function(*tensors))(*traced)
    with tracing(TracingContext(mode)):  # a value rounded to bfloat16 and back shall be the rounded one:
        return cast(Callable[..., None], compile_fx(graph, traced, config_patches={"emulate_precision_casts": True}))


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
