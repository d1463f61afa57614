"""Steps of one token as compiled code.

Shapes: B sequences, T tokens, S slots of the cache, V vocabulary.
"""

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.inference.caches import Cache, Static
from gradwire.inference.errors import InferenceError
from gradwire.inference.model import CachedModel, Layout

_SHAPES = 64  # batch sizes and lengths that are compiled, at most
_PACKED = 4  # rows from which it pays to lay weights out for the products


class Compiled(nn.Module):
    """A model whose steps of one token over a `Static` cache torch.compile compiles, once for each shape of the cache.

    Compiling takes tens of seconds; prompts, and other caches, are computed as before. On the CPU a step reads what is
    filled of the cache, and the compiled code holds the weights as they are when a shape is first met: wrap a model
    anew after its weights changed.

    Args:
        model: One that takes a cache, in a way that torch.compile can trace.
        backend: Of torch.compile.

    Raises:
        InferenceError: there is no C++ compiler.
    """

    def __init__(self, model: CachedModel, backend: str = "inductor") -> None:
        super().__init__()
        self.model = model
        self._cpu = model.kv_layout().device.type == "cpu"
        if self._cpu and backend == "inductor":
            _check_compiler()
        compiling: Any = torch.compile
        self._step = compiling(
            _step,
            fullgraph=True,
            dynamic=False,
            backend=backend,
            recompile_limit=_SHAPES,
            isolate_recompiles=True,  # from whatever else is compiled in this process
        )
        self._last: tuple[weakref.ref[Cache], torch.Size] | None = None  # of the step before, within one generation

    def kv_layout(self) -> Layout:
        """What the model keeps of each token."""
        return self.model.kv_layout()

    def forward(self, ids_BT: Tensor, cache: Cache) -> Tensor:
        """Logits [B, 1, V] after the last of the next tokens [B, T].

        Raises:
            CacheFullError: there is no room for them; on the CPU.
        """
        if not isinstance(cache, Static) or ids_BT.shape[1] > 1:
            self._last = None  # a prompt: another generation may have other sequences, weights or modes
            logits_B1V: Tensor = self.model(ids_BT, cache=cache)
            return logits_B1V
        ids_B1 = ids_BT.clone(memory_format=torch.contiguous_format)  # code is compiled for strides, too
        # What the code was compiled for need not be looked at again for each token of one generation.
        same = self._last is not None and self._last[0]() is cache and self._last[1] == ids_BT.shape
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True) if same else self._compiling(len(ids_B1)):
            logits_B1V = self._step(self.model, ids_B1, cache, self._read(cache))
        self._last = weakref.ref(cache), ids_BT.shape
        return logits_B1V

    def _compiling(self, rows: int) -> AbstractContextManager[object]:
        return compiling_on_cpu(rows) if self._cpu else nullcontext()

    def _read(self, cache: Static) -> Tensor:
        """Slots [S] that a step reads: where the count of tokens is at hand the filled ones, in code for any number."""
        if not self._cpu:
            return cache.slots_S
        filled_S = cache.filled(1)
        torch._dynamo.decorators.mark_unbacked(filled_S, 0)
        return filled_S


def compiling_on_cpu(rows: int) -> AbstractContextManager[object]:
    """Within the block torch.compile makes code for steps of so many sequences, in which the weights are constants.

    There is no Python between its kernels. For several sequences the weights are copied as their products read them
    best; fewer read them as fast as they are.

    Args:
        rows: The sequences.
    """
    import torch._inductor.config

    settings: Any = torch._inductor.config
    patched: AbstractContextManager[object] = settings.patch(
        {"cpp_wrapper": True, "freezing": True, "cpp.weight_prepack": rows >= _PACKED}
    )
    return patched


def _step(model: CachedModel, ids_B1: Tensor, cache: Static, read_S: Tensor) -> Tensor:
    known: Any = torch._check  # what the compiler cannot see in code for any number of slots
    known(len(read_S) >= 1)
    known(len(read_S) <= cache.length)
    all_S, cache.slots_S = cache.slots_S, read_S
    logits_B1V = model(ids_B1, cache=cache)
    cache.slots_S = all_S
    return logits_B1V


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
