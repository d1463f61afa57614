import pytest
import torch

from gradwire.inference import InferenceError, Int8, Pool, Table
from gradwire.inference.caches import Packed, Plain
from tests.inference.models import decoder, prompts, recomputed


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("news", [[1, 1, 1], [1, 1, 6], [1, 3, 6], [2, 4, 6], [5]])
def test_sequences_side_by_side_have_the_logits_of_each_alone(kv_heads: int, news: list[int]) -> None:
    model = decoder(kv_heads=kv_heads)
    pool = Pool(model.kv_layout(), 30, block=4)
    befores = prompts([7, 2, 12][: len(news)])
    tables = [Table(pool) for _ in news]
    with torch.no_grad():
        for table, ids in zip(tables, befores, strict=True):
            model(torch.tensor([ids]), cache=Packed(pool, [table], [len(ids)]))
        after = prompts(news)
        cache = Packed(pool, tables, news)
        logits = model(torch.tensor([[token for ids in after for token in ids]]), cache=cache)
    assert logits.shape == (1, len(news), 61)
    for row, (before, ids) in enumerate(zip(befores, after, strict=True)):
        alone = recomputed(model, [before + ids], torch.zeros(1, 0, dtype=torch.int64))[0, 0]
        torch.testing.assert_close(logits[0, row], alone, rtol=0, atol=1e-4)


def test_a_packed_pool_may_hold_eight_bits() -> None:
    model = decoder(width=256)
    found = []
    for storage in (Plain, Int8):
        pool = Pool(model.kv_layout(), 9, block=4, storage=storage)
        tables = [Table(pool), Table(pool)]
        with torch.no_grad():
            ids = torch.tensor([[token for row in prompts([9, 4]) for token in row]])
            found.append(model(ids, cache=Packed(pool, tables, [9, 4])))
    assert 0 < (found[1] - found[0]).norm() / found[0].norm() < 0.04


def test_what_cannot_lie_side_by_side_is_refused() -> None:
    model = decoder()
    pool = Pool(model.kv_layout(), 9, block=4)
    for counts in ([2, 1], [1, 0], [1]):
        with pytest.raises(InferenceError, match="those with just one come first"):
            Packed(pool, [Table(pool), Table(pool)], counts)
    cache = Packed(pool, [Table(pool), Table(pool)], [1, 2])
    with pytest.raises(InferenceError, match="have 3 new tokens together, found 4"):
        model(torch.zeros(1, 4, dtype=torch.int64), cache=cache)
    for refused in (lambda: cache.reset(1), lambda: cache.repeat(2), lambda: cache.pad(torch.zeros(1))):
        with pytest.raises(InferenceError):
            refused()
