"""Steps of one token as compiled code.

Shapes: B sequences, T tokens, S slots of the cache, V vocabulary.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn

from gradwire.inference.caches import Cache, Static
from gradwire.inference.errors import InferenceError
from gradwire.inference.model import CachedModel, Layout

Code = Callable[..., Sequence[Any]]  # what a graph computes of its inputs, compiled
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
        self._recorder = _Recorder(backend)
        compiling: Any = torch.compile
        self._step = compiling(
            _step,
            fullgraph=True,
            dynamic=False,
            backend=self._recorder,
            recompile_limit=_SHAPES,
            isolate_recompiles=True,  # from whatever else is compiled in this process
        )
        self._replays: WeakKeyDictionary[Cache, _Replay] = WeakKeyDictionary()  # within one generation

    def kv_layout(self) -> Layout:
        """What the model keeps of each token."""
        return self.model.kv_layout()

    def forward(self, ids_BT: Tensor, cache: Cache) -> Tensor:
        """Logits [B, 1, V] after the last of the next tokens [B, T].

        Raises:
            CacheFullError: there is no room for them; on the CPU.
        """
        if not isinstance(cache, Static) or ids_BT.shape[1] > 1 or (self._cpu and not cache.tokens):
            self._replays.clear()  # a prompt: another generation may have other sequences, weights or modes
            logits_B1V: Tensor = self.model(ids_BT, cache=cache)
            return logits_B1V
        if self._cpu:
            cache.check_room(1)
        replay = self._replays.get(cache)
        if replay is not None and replay.fits(ids_BT):
            return replay(ids_BT)
        ids_B1 = ids_BT.clone(memory_format=torch.contiguous_format)  # code is compiled for strides, too
        with self._compiling(len(ids_B1)):
            logits_B1V = self._step(self.model, ids_B1, cache)
        self._replays[cache] = self._recorder.replay(ids_B1, logits_B1V)
        return logits_B1V

    def _compiling(self, rows: int) -> AbstractContextManager[object]:
        return _compiling_on_cpu(rows) if self._cpu else nullcontext()


class _Replay:
    """A step again, without looking again at what its code was compiled for: that is the same within one generation.

    Args:
        ids_B1: Where the code reads the tokens.
        code: Of the step.
        inputs: What it was called with: the tokens and the cache's memory.
        place: Of the logits among what the code gives.
    """

    def __init__(self, ids_B1: Tensor, code: Code, inputs: Sequence[Any], place: int) -> None:
        self._ids_B1, self._code, self._inputs, self._place = ids_B1, code, inputs, place

    def fits(self, ids_B1: Tensor) -> bool:
        """Whether the code is for so many sequences."""
        return self._ids_B1.shape == ids_B1.shape

    def __call__(self, ids_B1: Tensor) -> Tensor:
        self._ids_B1.copy_(ids_B1)
        logits_B1V: Tensor = self._code(*self._inputs)[self._place]
        return logits_B1V


class _Recorder:
    """A backend of torch.compile that knows what its code was last called with."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._last: tuple[Code, Sequence[Any], Sequence[Any]] | None = None

    def __call__(self, graph: fx.GraphModule, examples: list[Tensor]) -> Code:
        from torch._dynamo import lookup_backend

        code = lookup_backend(self._backend)(graph, examples)

        def recorded(*inputs: Any) -> Sequence[Any]:
            outputs = code(*inputs)
            self._last = code, inputs, outputs
            return outputs

        return recorded

    def replay(self, ids_B1: Tensor, logits_B1V: Tensor) -> _Replay:
        """The last call, of these tokens with these logits; it is forgotten here."""
        assert self._last is not None, "the whole step is one graph"
        (code, inputs, outputs), self._last = self._last, None
        return _Replay(ids_B1, code, inputs, next(n for n, each in enumerate(outputs) if each is logits_B1V))


def _compiling_on_cpu(rows: int) -> AbstractContextManager[object]:
    """Within the block torch.compile makes code for steps of so many sequences, in which the weights are constants.

    There is no Python between its kernels, and it counts the tokens itself. For several sequences the weights are
    copied as their products read them best; fewer read them as fast as they are.

    Args:
        rows: The sequences.
    """
    import torch._inductor.config

    settings: Any = torch._inductor.config
    patched: AbstractContextManager[object] = settings.patch(
        {"cpp_wrapper": True, "freezing": True, "cpp.weight_prepack": rows >= _PACKED}
    )
    return patched


def _step(model: CachedModel, ids_B1: Tensor, cache: Static) -> Tensor:
    all_S = cache.slots_S
    if cache.layout.device.type == "cpu":  # where the count of tokens is at hand
        cache.slots_S = cache.filled(1)
    try:
        return model(ids_B1, cache=cache)
    finally:
        cache.slots_S = all_S


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
