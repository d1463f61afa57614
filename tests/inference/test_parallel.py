import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.inference import Caching, Sampling, Shares, Stop, generate, generate_shared
from tests.inference.models import decoder, prompts


class Ranks:
    """Ranks as threads; every gather waits for all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=120)
        self._held: list[Tensor] = [torch.zeros(0)] * size

    def gather(self, rank: int, values: Tensor) -> Sequence[Tensor]:
        self._held[rank] = values
        self._barrier.wait()
        found = list(self._held)
        self._barrier.wait()
        return found

    def run(self, work: Callable[[Shares], Any], lockstep: bool = True) -> list[Any]:
        found: list[Any] = [None] * self.size

        def one(rank: int) -> None:
            try:
                found[rank] = work(Shares(rank, self.size, lambda values: self.gather(rank, values), lockstep))
            except BaseException:
                self._barrier.abort()
                raise

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 5), (3, 2)])
def test_shared_prompts_come_back_in_order_as_one_rank_writes_them(size: int, count: int, lockstep: bool) -> None:
    model, rows = decoder(), prompts([4, 9, 2, 6, 3][:count])
    stop = Stop(tokens=frozenset(range(0, 61, 7)))
    expected = generate(model, rows, 15, samples=2, seed=3, stop=stop)
    found = Ranks(size).run(
        lambda shares: generate_shared(model, rows, 15, shares=shares, samples=2, seed=3, stop=stop), lockstep
    )
    for each in found:
        assert [(one.prompt, one.tokens, one.finish) for one in each] == [
            (one.prompt, one.tokens, one.finish) for one in expected
        ]
        for one, other in zip(each, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_ranks_in_lockstep_call_the_model_equally_often() -> None:
    calls = [0, 0]

    def work(shares: Shares) -> None:
        def model(ids_BT: Tensor) -> Tensor:
            calls[shares.share] += 1
            return 20.0 * torch.nn.functional.one_hot((ids_BT + 1) % 10, 10).float()

        stop = Stop(tokens=frozenset({9}))
        generate_shared(model, [[8], [3], [6, 7]], 50, Sampling(0.0), shares=shares, stop=stop)

    Ranks(2).run(work)
    assert calls[0] == calls[1] == 2 * 6  # two sequences each, until the slowest, 3, has reached 9


@pytest.mark.parametrize("limit", ["error", "window"])
def test_ranks_with_prompts_of_other_lengths_call_a_cached_model_equally_often(limit: Any) -> None:
    rows, calls = prompts([2, 30, 5]), [0, 0]
    new = 3 if limit == "error" else 9
    expected = generate(decoder(context=32), rows, new, caching=Caching(limit=limit))

    models = [decoder(context=32) for _ in range(2)]

    def work(shares: Shares) -> Any:
        model = models[shares.share]
        model.register_forward_hook(lambda *_: calls.__setitem__(shares.share, calls[shares.share] + 1))
        return generate_shared(model, rows, new, shares=shares, caching=Caching(limit=limit))

    found = Ranks(2).run(work)
    assert calls[0] == calls[1] > 0
    assert [each.tokens for each in found[0]] == [each.tokens for each in expected]


def _parted(rank: int) -> None:
    """Ranks whose rounding differs would part; with `agree` they take the first one's tokens."""

    def first(ids_B: Tensor) -> Tensor:
        dist.broadcast(ids_B, 0)
        return ids_B

    def model(ids_BT: Tensor) -> Tensor:
        logits = torch.zeros(*ids_BT.shape, 5)
        logits[..., rank] = 1e-6
        return logits

    assert generate(model, [[4]], 6, Sampling(0.0), agree=first)[0].tokens == (0,) * 6


def test_ranks_that_compute_one_model_go_on_with_one_ranks_tokens(ranks: Callable[..., None]) -> None:
    ranks(2, _parted)


def _split(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from gradwire.trainer.strategies.tensor_plan import parallelize

    rows = prompts([5, 11])
    whole = decoder(heads=4, kv_heads=2)
    expected = generate(whole, rows, 12, Sampling(0.0))
    model = decoder(heads=4, kv_heads=2)
    parallelize(model, init_device_mesh("cpu", (2,)))
    assert model.kv_layout().kv_heads == 1
    found = generate(model, rows, 12, Sampling(0.0))
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_each_rank_of_a_split_model_keeps_its_heads_alone(ranks: Callable[..., None]) -> None:
    ranks(2, _split)
