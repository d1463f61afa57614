import itertools
from collections.abc import Callable

import pytest
import torch

from gradwire.inference import (
    Cache,
    CacheFullError,
    Caching,
    Contiguous,
    InferenceError,
    Int8,
    Layout,
    Paged,
    Plain,
    Pool,
    Static,
    Table,
    Window,
)
from gradwire.trainer.models import Decoder
from tests.inference.models import decoder, logits_by_step, prompts, recomputed

MakeCache = Callable[[Layout, int, int], Cache]


def paged(layout: Layout, rows: int, length: int) -> Cache:
    pool = Pool(layout, rows * -(-length // 5) + 1, block=5)
    return Paged(pool, [Table(pool) for _ in range(rows)])


CACHES: dict[str, MakeCache] = {
    "contiguous": Contiguous,
    "static": Static,
    "paged": paged,
    "window": lambda layout, rows, length: Window(layout, rows, max(length, 5)),
}
LENGTHS = [(1,), (11,), (9, 9, 9), (1, 14, 6)]


@pytest.fixture(scope="module", params=[1, 2, 4], ids=["multi-query", "grouped", "multi-head"])
def model(request: pytest.FixtureRequest) -> Decoder:
    return decoder(kv_heads=request.param)


@pytest.mark.parametrize(("kind", "lengths"), list(itertools.product(CACHES, LENGTHS)))
def test_cached_logits_equal_uncached_ones_at_every_step(model: Decoder, kind: str, lengths: tuple[int, ...]) -> None:
    rows, following = prompts(lengths), torch.tensor(prompts([12] * len(lengths)))
    cache = CACHES[kind](model.kv_layout(), len(rows), max(lengths) + 12)
    cached = logits_by_step(model, cache, rows, following)
    torch.testing.assert_close(cached, recomputed(model, rows, following), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", CACHES)
def test_tokens_may_come_in_pieces_of_any_size(kind: str) -> None:
    model, rows, following = decoder(), prompts([23, 23]), torch.tensor(prompts([3, 3]))
    cache = CACHES[kind](model.kv_layout(), 2, 26)
    for chunk in (1, 4, 22):
        cached = logits_by_step(model, cache, rows, following, chunk)
        torch.testing.assert_close(cached, recomputed(model, rows, following), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["contiguous", "static", "paged", "window"])
def test_eight_bits_stay_close_and_take_a_fraction_of_the_memory(kind: str) -> None:
    model, rows, following = decoder(width=256), prompts([20, 7]), torch.tensor(prompts([8, 8]))
    whole = Caching(kind="contiguous" if kind == "window" else kind)  # type: ignore[arg-type]
    eight = Caching(kind=whole.kind, precision="int8")
    exact = recomputed(model, rows, following)
    if kind == "window":
        caches: list[Cache] = [Window(model.kv_layout(), 2, 28, storage) for storage in (Plain, Int8)]
    else:
        caches = [each.make(model.kv_layout(), 2, 28) for each in (whole, eight)]
    off = logits_by_step(model, caches[1], rows, following) - exact
    assert 0 < off.norm() / exact.norm() < 0.04
    share = caches[1].nbytes / caches[0].nbytes
    assert share == pytest.approx((64 + 4) / 256, abs=0.08 if kind == "window" else 1e-9)


@pytest.mark.parametrize("kind", CACHES)
def test_repeated_sequences_go_on_apart_from_one_prompt(kind: str) -> None:
    model, rows = decoder(), prompts([6, 13])
    cache = CACHES[kind](model.kv_layout(), 6, 20)
    cache.reset(2)
    ids = torch.tensor([[0] * 7 + rows[0], rows[1]])
    cache.pad(torch.tensor([7, 0]))
    following = torch.tensor(prompts([4] * 6))
    with torch.no_grad():
        model(ids, cache=cache)
        cache.repeat(3)
        found = torch.stack([model(ids_B[:, None], cache=cache)[:, -1] for ids_B in following.unbind(1)])
    expected = recomputed(model, [rows[0]] * 3 + [rows[1]] * 3, following)
    torch.testing.assert_close(found, expected[1:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_that_was_used_and_reset_is_as_new(kind: str) -> None:
    model, rows, following = decoder(), prompts([5, 9]), torch.tensor(prompts([4, 4]))
    cache = CACHES[kind](model.kv_layout(), 2, 13)
    first = logits_by_step(model, cache, rows, following)
    addresses = cache.nbytes
    assert torch.equal(logits_by_step(model, cache, rows, following), first)
    assert cache.nbytes == addresses


def test_memory_is_allocated_once_and_counted() -> None:
    layout = decoder().kv_layout()
    assert layout.token_bytes == 2 * 2 * 2 * 12 * 4  # keys and values, layers, heads, width, bytes
    for kind in ("contiguous", "static"):
        assert CACHES[kind](layout, 3, 50).nbytes == 3 * 50 * layout.token_bytes
    assert Pool(layout, 7, 16).nbytes == 7 * 16 * layout.token_bytes


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_no_more_tokens_than_there_is_room_for(kind: str) -> None:
    model = decoder()
    cache = CACHES[kind](model.kv_layout(), 1, 5) if kind == "contiguous" else paged(model.kv_layout(), 1, 4)
    room = 5 if kind == "contiguous" else 10
    model(torch.zeros(1, room, dtype=torch.int64), cache=cache)
    with pytest.raises(CacheFullError, match=r"allocated for 5|1 blocks of 5 tokens are needed, and 0 of 2"):
        model(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_no_more_tokens_than_the_model_knows_positions_for(kind: str) -> None:
    model = decoder(context=8)
    cache = CACHES[kind](model.kv_layout(), 1, 20)
    model(torch.zeros(1, 8, dtype=torch.int64), cache=cache)
    with pytest.raises(CacheFullError, match="9 tokens in a sequence, where the model knows 8 positions"):
        model(torch.zeros(1, 1, dtype=torch.int64), cache=cache)


@pytest.mark.parametrize("kind", ["contiguous", "static", "window"])
def test_padding_and_repeating_are_checked(kind: str) -> None:
    model = decoder()
    cache = CACHES[kind](model.kv_layout(), 2, 9)
    with pytest.raises(InferenceError, match="padding must be 2 whole numbers"):
        cache.pad(torch.tensor([1]))
    with pytest.raises(InferenceError, match="allocated for 1 to 2 sequences, found 4"):
        cache.repeat(2)
    model(torch.zeros(2, 3, dtype=torch.int64), cache=cache)
    with pytest.raises(InferenceError, match="padding stands before the first token, but the cache holds 3"):
        cache.pad(torch.tensor([1, 0]))


def test_a_step_over_a_static_cache_is_compiled_once() -> None:
    model = decoder()
    cache = Static(model.kv_layout(), 2, 16)
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    def step(ids_B1: torch.Tensor) -> torch.Tensor:
        return model(ids_B1, cache=cache)

    rows, following = prompts([3, 3]), torch.tensor(prompts([9, 9]))
    with torch.no_grad():
        model(torch.tensor(rows), cache=cache)
        compiled = torch.compile(step, backend=count, fullgraph=True, dynamic=False)
        found = torch.stack([compiled(ids_B[:, None])[:, -1] for ids_B in following.unbind(1)])
    assert len(graphs) == 1
    torch.testing.assert_close(found, recomputed(model, rows, following)[1:], rtol=0, atol=1e-4)


def test_training_and_caching_share_no_graph() -> None:
    model = decoder().train()
    cache = Contiguous(model.kv_layout(), 1, 4)
    with torch.no_grad():
        assert not model(torch.zeros(1, 2, dtype=torch.int64), cache=cache).requires_grad
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert model.embedding.weight.grad is not None


@pytest.mark.parametrize(
    ("caching", "message"),
    [
        ({"kind": "ring"}, "cache must be one of contiguous, static, paged, none, found 'ring'"),
        ({"limit": "shift"}, "limit must be one of error, window, found 'shift'"),
        ({"precision": "int4"}, "precision must be one of model, int8, found 'int4'"),
        ({"length": 0}, "length must be at least 1, found 0"),
        ({"kept": -1}, "kept must be at least 0, found -1"),
    ],
)
def test_unknown_caches_are_refused(caching: dict[str, str], message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        Caching(**caching)  # type: ignore[arg-type]


def test_the_limit_decides_what_happens_past_the_length() -> None:
    layout = decoder(context=32).kv_layout()
    assert isinstance(Caching(limit="window").make(layout, 1, 32), Contiguous)
    window = Caching(limit="window", length=20, kept=3).make(layout, 1, 33)
    assert isinstance(window, Window)
    assert (window.length, window.kept) == (20, 3)
    with pytest.raises(CacheFullError, match="make 33, but the model's context is 32"):
        Caching().make(layout, 1, 33)
    with pytest.raises(CacheFullError, match="make 21, but length is 20"):
        Caching(length=20).make(layout, 1, 21)
    with pytest.raises(InferenceError, match="a window is contiguous, but cache='paged'"):
        Caching(kind="paged", limit="window").make(layout, 1, 33)
