from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire.inference import (
    Cache,
    CacheFullError,
    Caching,
    Engine,
    InferenceError,
    Layout,
    Pool,
    Request,
    Sampling,
    Stop,
    Table,
    generate,
)
from tests.inference.models import decoder, prompts


class Counting:
    """A model with a cache that counts: the next token is one more than the last, the sum of all seen is checked."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def kv_layout(self) -> Layout:
        return Layout(1, 1, 1, torch.float64, torch.device("cpu"))

    def __call__(self, ids_BT: Tensor, *, cache: Cache) -> Tensor:
        self.calls.append(tuple(ids_BT.shape))  # type: ignore[arg-type]
        cache.begin(ids_BT.shape[1])
        kept = ids_BT.double()[:, None, :, None]
        seen, _ = cache.update(0, kept, kept)
        mask = cache.mask
        visible = torch.ones_like(seen[:, 0, :, 0]) if mask is None else mask[:, -1].double()
        total = (seen[:, 0, :, 0] * visible).sum(-1).long()
        return 30.0 * torch.nn.functional.one_hot(total % 97, 97).double()[:, None]


def counted(prompt: list[int], new: int) -> list[int]:
    ids = list(prompt)
    for _ in range(new):
        ids.append(sum(ids) % 97)
    return ids[len(prompt) :]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 14)), min_size=1, max_size=9),
    st.integers(7, 20),
    st.integers(1, 5),
    st.integers(1, 30),
)
@settings(max_examples=60)
def test_every_request_gets_its_tokens_whatever_the_pool_and_the_company(
    sizes: list[tuple[int, int]], blocks: int, most: int, prefill: int
) -> None:
    model = Counting()
    pool = Pool(model.kv_layout(), blocks, block=4)
    engine = Engine(model, pool, most=most, prefill=prefill)
    requests = [
        Request(tuple(range(index % 2, length + index % 2)), new, Sampling(0.0))
        for index, (length, new) in enumerate(sizes)
    ]
    found = engine.run(requests)
    assert [list(each.tokens) for each in found] == [
        counted(list(request.prompt), request.max_new_tokens) for request in requests
    ]
    assert (pool.free, engine.running, engine.waiting) == (blocks, 0, 0)
    assert max(rows for rows, _ in model.calls) <= most


def test_tokens_are_those_of_each_request_alone() -> None:
    model, rows = decoder(), prompts([5, 17, 9, 2, 30])
    plans = [Sampling(), Sampling(0.0), Sampling(0.8, top_k=7), Sampling(), Sampling(0.9, repetition_penalty=1.2)]
    pool = Pool(model.kv_layout(), 14, block=8)
    requests = [Request(tuple(row), 20, plan, seed) for seed, (row, plan) in enumerate(zip(rows, plans, strict=True))]
    found = Engine(model, pool).run(requests)
    for request, each in zip(requests, found, strict=True):
        alone = generate(
            model, [list(request.prompt)], 20, request.sampling, seed=[request.seed], caching=Caching(kind="none")
        )[0]
        assert each.tokens == alone.tokens
        assert each.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_full_pool_takes_from_who_came_last_and_nobody_notices() -> None:
    model = Counting()
    pool = Pool(model.kv_layout(), 8, block=4)
    engine = Engine(model, pool)
    requests = [Request((index, 1, 2), 20, Sampling(0.0)) for index in range(4)]  # six blocks each in the end
    found = engine.run(requests)
    assert engine.preemptions > 0
    assert [list(each.tokens) for each in found] == [counted([index, 1, 2], 20) for index in range(4)]


def test_more_run_as_others_leave_and_requests_may_come_at_any_time() -> None:
    model = Counting()
    engine = Engine(model, Pool(model.kv_layout(), 40, block=4), most=2)
    for new in (2, 9, 2):
        engine.submit(Request((1,), new, Sampling(0.0)))
    first = engine.step()
    assert [token.sequence for token in first] == [0, 1]
    assert (engine.running, engine.waiting) == (2, 1)
    second = engine.step()
    assert [(token.sequence, token.finish) for token in second] == [(0, "length"), (1, None)]
    late = engine.submit(Request((5,), 1, Sampling(0.0)))
    rest = list(engine.stream())
    assert {token.sequence for token in rest if token.finish} == {1, 2, late}


def test_equal_beginnings_are_computed_and_stored_once() -> None:
    model = Counting()
    pool = Pool(model.kv_layout(), 40, block=4)
    engine = Engine(model, pool)
    beginning = tuple(range(16))
    for last in range(3):
        engine.submit(Request((*beginning, last), 5, Sampling(0.0)))
    tokens = engine.step() + engine.step()
    assert model.calls == [(1, 17), (3, 1)]  # the others compute their own token only
    assert 40 - pool.free == 4 + 3
    assert len(tokens) + len(list(engine.stream())) == 3 * 5


def test_stop_tokens_end_requests_and_cancelled_ones_are_dropped() -> None:
    model = Counting()
    pool = Pool(model.kv_layout(), 40, block=4)
    engine = Engine(model, pool)
    stopped = engine.submit(Request((1,), 50, Sampling(0.0), stop=Stop(tokens=frozenset({4}))))  # 1, 2, 4
    dropped = engine.submit(Request((3,), 50, Sampling(0.0)))
    engine.step()
    engine.cancel(dropped)
    tokens = [(token.sequence, token.id, token.finish) for token in engine.stream()]
    assert tokens == [(stopped, 2, None), (stopped, 4, "stop")]
    assert pool.free == 40


def test_what_can_never_be_served_is_refused() -> None:
    model = decoder(context=16)
    engine = Engine(model, Pool(model.kv_layout(), 3, block=4))
    with pytest.raises(CacheFullError, match="a request of 13 tokens, where the pool holds 12"):
        engine.submit(Request((1, 2, 3, 4), 10))
    with pytest.raises(CacheFullError, match="the model knows 16 positions"):
        Engine(model, Pool(model.kv_layout(), 9, block=4)).submit(Request((1, 2, 3, 4), 14))
    with pytest.raises(InferenceError, match="at least one token of prompt and one new one, found 0 and 1"):
        Request((), 1)
    with pytest.raises(InferenceError, match="most and prefill must be at least 1"):
        Engine(model, Pool(model.kv_layout(), 9, block=4), most=0)


def test_a_pool_that_others_hold_is_an_error_and_no_endless_loop() -> None:
    model: Any = Counting()
    pool = Pool(model.kv_layout(), 4, block=4)
    guest = Table(pool)
    guest.reserve(8)
    engine = Engine(model, pool)
    engine.submit(Request((1, 2, 3), 12, Sampling(0.0)))
    with pytest.raises(CacheFullError, match="0 of 4 are free"):
        list(engine.stream())
