"""Bytes that generation holds, and how much of a pool can be used."""

import random
import statistics
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_map_only

from gradwire.inference import Cache, Caching, Layout, Pool, PoolFullError, Table
from gradwire.inference.steps import Cached
from gradwire.trainer.bench.inference_models import Concatenating
from gradwire.trainer.models import Decoder

_Mode: Any = _python_dispatch.TorchDispatchMode


class Held(_Mode):  # type: ignore[misc]  # torch leaves it untyped
    """Counts the bytes of all tensors made within the block that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.most: int = 0
        self._bytes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {each.untyped_storage()._cdata for each in _tensors((args, kwargs))}
        for each in _tensors(made):
            storage = each.untyped_storage()
            key = storage._cdata
            if key not in given and key not in self._bytes:
                self._bytes[key] = storage.nbytes()
                weakref.finalize(storage, self._bytes.pop, key, None)
        self.most = max(self.most, sum(self._bytes.values()))
        return made


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    tree_map_only(Tensor, found.append, tree)
    return found


def peaks(model: Decoder, rows: int, prompt: int, new: int) -> dict[str, int]:
    """The most bytes held beside the weights while tokens are generated, by kind of cache."""
    layout, tokens = model.kv_layout(), prompt + new
    kinds: dict[str, Callable[[], Cache]] = {
        "contiguous": lambda: Caching().make(layout, rows, tokens),
        "paged": lambda: Caching(kind="paged").make(layout, rows, tokens),
        "int8": lambda: Caching(precision="int8").make(layout, rows, tokens),
        "window of a quarter": lambda: Caching(limit="window", length=tokens // 4).make(layout, rows, tokens),
        "concatenating": lambda: Concatenating(layout, rows),
    }
    return {name: _peak(model, make, rows, prompt, new) for name, make in kinds.items()}


@torch.no_grad()
def _peak(model: Decoder, make: Callable[[], Cache], rows: int, prompt: int, new: int) -> int:
    with Held() as held:
        steps = Cached(model, make())
        ids_B = steps.first([list(range(prompt))] * rows).argmax(-1)
        for _ in range(new - 1):
            ids_B = steps.next(ids_B).argmax(-1)
    most: int = held.most
    return most


def usable_share(blocks: int, block: int, shortest: int, longest: int, turns: int) -> tuple[float, float]:
    """Of a pool's tokens, the share that sequences of random lengths have filled when the next one does not fit; the
    median and the least of many times, between which random sequences have ended."""
    chooser = random.Random(0)
    layout = Layout(1, 1, 1, torch.float32, torch.device("cpu"))
    pool, tables, shares = Pool(layout, blocks, block), [], []
    for _ in range(turns):
        while True:
            table = Table(pool)
            try:
                table.reserve(min(chooser.randint(shortest, longest), pool.free * block or 1))
            except PoolFullError:
                break
            tables.append(table)
        shares.append(sum(table.tokens for table in tables) / (blocks * block))
        chooser.shuffle(tables)
        for table in tables[len(tables) // 2 :]:
            table.release()
        del tables[len(tables) // 2 :]
    return statistics.median(shares), min(shares)
