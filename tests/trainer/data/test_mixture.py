from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Plan
from gradwire.trainer.data import DataError, Feed, Mixture, PythonSource, SampleStream
from gradwire.trainer.data.mixture import quotas
from tests.trainer.data.datasets_for_tests import Augmented, Numbers


class Named(Numbers):
    """Samples that say where they come from."""

    def __init__(self, size: int, name: int) -> None:
        super().__init__(size)
        self._name = name

    def gather(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, torch.Tensor]:
        return {"index": torch.from_numpy(indices), "name": torch.full((len(indices),), self._name)}


class Source:
    def __init__(self, train: Any, validation: Any = None, context: int = 1) -> None:
        self.train, self.validation, self.context = train, validation, context


def three(block: int = 100) -> Mixture:
    sources = {name: Source(Named(size, k), Named(k + 2, k)) for k, (name, size) in enumerate(SIZES.items())}
    return Mixture(sources, {"a": 6.0, "b": 3.0, "c": 1.0}, block)


SIZES = {"a": 50, "b": 1000, "c": 7}


def fetched(mixture: Mixture, first: int, stop: int, seed: int = 3) -> dict[str, torch.Tensor]:
    batch: dict[str, torch.Tensor] = SampleStream(mixture.train, seed).fetch(np.arange(first, stop))
    return batch


def test_every_block_holds_exact_shares() -> None:
    names = fetched(three(), 0, 1000)["name"].reshape(10, 100)
    assert [torch.bincount(block).tolist() for block in names] == [[60, 30, 10]] * 10


def test_shares_are_mixed_within_a_block_and_differently_in_the_next() -> None:
    names = fetched(three(), 0, 200)["name"]
    assert torch.bincount(names[:50]).tolist() != [50]
    assert names[:100].tolist() != names[100:].tolist()


def test_each_source_goes_through_epochs_of_its_own() -> None:
    batch = fetched(three(), 0, 10_000)
    for name, size in enumerate(SIZES.values()):
        own = batch["index"][batch["name"] == name]
        whole = own[: len(own) // size * size].reshape(-1, size)
        assert torch.equal(whole.sort(1)[0], torch.arange(size).expand(len(whole), -1))


@settings(max_examples=40)
@given(first=st.integers(0, 10**9), count=st.integers(1, 300), seed=st.integers(0, 2**62))
def test_order_is_a_pure_function_of_the_samples_seen(first: int, count: int, seed: int) -> None:
    together = fetched(three(), first, first + count, seed)
    single = [fetched(three(), ordinal, ordinal + 1, seed) for ordinal in range(first, first + count, 37)]
    assert torch.equal(together["index"][::37], torch.cat([one["index"] for one in single]))
    assert torch.equal(together["name"][::37], torch.cat([one["name"] for one in single]))


def test_order_is_the_same_through_a_feed_with_workers_at_any_world_size() -> None:
    plan = Plan(lr=1.0, batch=30, run_length="330 samples")
    for world_size, workers in ((1, 0), (2, 2)):
        by_rank = [
            list(Feed(SampleStream(three().train, 3), plan, Clock(), rank, world_size, micro=4, workers=workers))
            for rank in range(world_size)
        ]
        got = [
            micro.batch["index"]
            for updates in zip(*by_rank, strict=True)
            for update in updates
            for micro in update.micro_batches
            if micro.weight
        ]
        assert torch.equal(torch.cat(got), fetched(three(), 0, 330)["index"])


@given(weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=10), block=st.integers(1000, 5000))
def test_quotas_sum_to_the_block_and_are_within_one_of_exact(weights: list[float], block: int) -> None:
    named = {str(k): weight for k, weight in enumerate(weights)}
    found = quotas(named, block)
    assert sum(found) == block
    assert all(abs(one - weight / sum(weights) * block) < 1 for one, weight in zip(found, weights, strict=True))


def test_validation_takes_all_parts_whole() -> None:
    validation = three().validation
    assert validation is not None
    assert len(validation) == 2 + 3 + 4
    batch = SampleStream(validation).take(np.array([8, 0, 2, 4, 5]))
    assert batch["name"].tolist() == [2, 0, 1, 1, 2]
    assert batch["index"].tolist() == [3, 0, 0, 2, 0]


def test_datasets_without_gather_are_mixed_and_seeded_by_ordinal() -> None:
    mixture = Mixture({"a": Augmented(5), "b": Augmented(9)}, {"a": 1.0, "b": 1.0}, 10)
    together, part = fetched(mixture, 0, 40), fetched(mixture, 17, 21)
    assert torch.equal(together["noise"][17:21], part["noise"])
    assert mixture.validation is None


def test_text_and_vocabulary_are_those_of_the_sources() -> None:
    mixture = Mixture({"a": PythonSource(64), "b": PythonSource(64, 0.5)}, {"a": 1.0, "b": 2.0})
    assert (mixture.context, mixture.vocabulary) == (64, 256)
    assert mixture.decode(mixture.encode("text")) == "text"
    assert fetched(mixture, 0, 7)["input_ids"].shape == (7, 64)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0}, "weights must name the sources, found weights of a and sources a, b"),
        ({"a": 1.0, "c": 1.0}, "weights must name the sources"),
        ({"a": 1.0, "b": 0.0}, "weights.b must be a positive number, found 0.0"),
        ({"a": 1.0, "b": float("nan")}, "weights.b must be a positive number"),
        ({"a": 1.0, "b": 1e-6}, "weights.b comes to less than one sample in a block of 1000: raise block"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Mixture({"a": Source(Numbers(3)), "b": Source(Numbers(3))}, weights)


def test_sources_of_different_context_are_refused() -> None:
    with pytest.raises(DataError, match="need the same context: a has 2, b has 3"):
        Mixture({"a": Source(Numbers(3), context=2), "b": Source(Numbers(3), context=3)}, {"a": 1.0, "b": 1.0})


def test_samples_of_different_kinds_are_refused() -> None:
    mixture = Mixture({"a": Source(Numbers(3)), "b": Source(Named(3, 0))}, {"a": 1.0, "b": 1.0}, 4)
    with pytest.raises(DataError, match="samples with different entries cannot be mixed"):
        fetched(mixture, 0, 4)


def test_mixture_of_mixtures(tmp_path: Path) -> None:
    outer = Mixture({"inner": three(), "d": Source(Named(9, 3))}, {"inner": 3.0, "d": 1.0}, 8)
    assert torch.bincount(fetched(outer, 0, 800)["name"]).tolist() == [360, 180, 60, 200]
