"""Steps of one token as compiled code.

Shapes: B sequences, T tokens, V vocabulary.
"""

import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.inference.caches import Cache, Static
from gradwire.inference.errors import InferenceError
from gradwire.inference.model import CachedModel, Layout

_SHAPES = 64  # batch sizes and lengths that are compiled, at most
CPU_OPTIONS: dict[
    str, Any
] = {  # weights laid out for the products, which are chosen by trying; no Python between kernels
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
    "cpp_wrapper": True,
    "autotune_num_choices_displayed": 0,
}


class Compiled(nn.Module):
    """A model whose steps of one token over a `Static` cache torch.compile compiles, once for each shape of the cache.

    Compiling takes tens of seconds; prompts, and other caches, are computed as before. On the CPU the compiled code
    holds copies of the weights as they are when a shape is first met: wrap a model anew after its weights changed.

    Args:
        model: One that takes a cache, in a way that torch.compile can trace.
        backend: Of torch.compile.

    Raises:
        InferenceError: there is no C++ compiler.
    """

    def __init__(self, model: CachedModel, backend: str = "inductor") -> None:
        super().__init__()
        self.model = model
        cpu = model.kv_layout().device.type == "cpu"
        if cpu and backend == "inductor":
            _check_compiler()
        compiling: Any = torch.compile
        self._step = compiling(
            _step,
            fullgraph=True,
            dynamic=False,
            backend=backend,
            options=CPU_OPTIONS if cpu and backend == "inductor" else None,
            recompile_limit=_SHAPES,
            isolate_recompiles=True,  # from whatever else is compiled in this process
        )
        self._last: tuple[weakref.ref[Cache], torch.Size] | None = None  # of the step before, within one generation

    def kv_layout(self) -> Layout:
        """What the model keeps of each token."""
        return self.model.kv_layout()

    def forward(self, ids_BT: Tensor, cache: Cache) -> Tensor:
        """Logits [B, 1, V] after the last of the next tokens [B, T]."""
        if not isinstance(cache, Static) or ids_BT.shape[1] > 1:
            self._last = None  # a prompt: another generation may have other sequences, weights or modes
            logits_B1V: Tensor = self.model(ids_BT, cache=cache)
            return logits_B1V
        # What the code was compiled for need not be looked at again for each token of one generation.
        same = self._last is not None and self._last[0]() is cache and self._last[1] == ids_BT.shape
        ids_B1 = ids_BT.clone(memory_format=torch.contiguous_format)  # code is compiled for strides, too
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True) if same else nullcontext():
            logits_B1V = self._step(self.model, ids_B1, cache)
        self._last = weakref.ref(cache), ids_BT.shape
        return logits_B1V


def _step(model: CachedModel, ids_B1: Tensor, cache: Cache) -> Tensor:
    return model(ids_B1, cache=cache)


def _check_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler  # imports the compiler, which takes a second
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise InferenceError(
            "compiling needs a C++ compiler, and none was found: install g++ or clang++ (or set CXX), or generate "
            "without compiling"
        ) from error
