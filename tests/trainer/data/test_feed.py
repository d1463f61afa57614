import itertools
import logging
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.schedulers import Clock, Plan, Step
from gradwire.trainer.data import DataError, Feed, SampleStream, UpdateBatch, shares
from gradwire.trainer.data.feed import Cut, few_shapes, fewest_passes, passes
from tests.trainer.data.datasets_for_tests import Augmented, Broken, Numbers, WhichWorker


@dataclass(frozen=True)
class Sizes:
    """A plan with these batch sizes, one after another."""

    sizes: tuple[int, ...]

    def at(self, clock: Clock) -> Step:
        return Step(self.sizes[clock.updates], 0.1)

    def finished(self, clock: Clock) -> bool:
        return clock.updates == len(self.sizes)


def feed(dataset: Any, sizes: tuple[int, ...], clock: Clock | None = None, **arguments: Any) -> Feed:
    return Feed(SampleStream(dataset, seed=5), Sizes(sizes), clock or Clock(), **arguments)


def started_by(updates: Iterator[UpdateBatch]) -> list[psutil.Process]:
    """The worker processes that the first update of a feed starts; feeds of other tests may still have theirs."""
    before = {process.pid for process in psutil.Process().children()}
    next(updates)
    return [process for process in psutil.Process().children() if process.pid not in before]


def seen(updates: list[UpdateBatch], key: str = "index") -> list[Any]:
    """The samples of weight 1 in order."""
    batches = [micro.batch[key] for update in updates for micro in update.micro_batches if micro.weight]
    return torch.cat(batches).tolist() if batches else []


@given(batch_size=st.integers(0, 5000), world_size=st.integers(1, 200))
def test_shares_cover_the_batch_in_order_and_differ_by_at_most_one(batch_size: int, world_size: int) -> None:
    parts = shares(batch_size, world_size)
    assert list(itertools.chain(*parts)) == list(range(batch_size))
    assert len(parts) == world_size
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(
    first=st.integers(0, 10**12),
    batch_size=st.integers(1, 300),
    world_size=st.integers(1, 20),
    micro=st.integers(1, 50),
    cut=st.sampled_from([fewest_passes, few_shapes]),
)
def test_every_rank_makes_as_many_passes_and_together_they_see_each_sample_once(
    first: int, batch_size: int, world_size: int, micro: int, cut: Cut
) -> None:
    by_rank = [passes(first, batch_size, rank, world_size, micro, cut) for rank in range(world_size)]
    assert len({len(own) for own in by_rank}) == 1
    assert len(by_rank[0]) >= 1
    assert all(1 <= len(one.ordinals) <= micro for own in by_rank for one in own)
    weighted = [ordinal for own in by_rank for one in own if one.weight for ordinal in one.ordinals]
    assert weighted == list(range(first, first + batch_size))
    idle = [ordinal for own in by_rank for one in own if not one.weight for ordinal in one.ordinals]
    assert all(first <= ordinal < first + batch_size for ordinal in idle)


@given(world_size=st.integers(1, 20), micro=st.integers(1, 200), largest=st.integers(1, 2000))
def test_a_growing_batch_has_few_shapes_on_every_rank(world_size: int, micro: int, largest: int) -> None:
    steps = range(1, largest + 1, max(largest // 50, 1))
    shapes = {
        len(one.ordinals)
        for batch_size in steps
        for rank in {0, world_size - 1}
        for one in passes(7, batch_size, rank, world_size, micro, few_shapes)
    }
    allowed = {micro} | {2**power for power in range(20) if 2**power < micro}
    assert shapes <= allowed
    assert len(allowed) == math.ceil(math.log2(micro)) + 1


@pytest.mark.parametrize(
    ("share", "micro", "few", "fewest"),
    [(8, 8, [8], [8]), (23, 8, [8, 8, 4, 2, 1], [8, 8, 7]), (11, 6, [6, 4, 1], [6, 5]), (3, 1, [1] * 3, [1] * 3)],
)
def test_a_share_is_cut_into_full_micro_batches_and_falling_powers_of_two(
    share: int, micro: int, few: list[int], fewest: list[int]
) -> None:
    assert few_shapes(share, micro) == few
    assert fewest_passes(share, micro) == fewest


def test_the_cut_changes_the_passes_and_not_the_samples() -> None:
    coarse, fine = (list(feed(Numbers(60), (3, 9, 23), micro=8, cut=cut)) for cut in (fewest_passes, few_shapes))
    assert seen(coarse) == seen(fine)
    assert [[len(one.batch["index"]) for one in update.micro_batches] for update in fine] == [
        [2, 1],
        [8, 1],
        [8, 8, 4, 2, 1],
    ]


@settings(max_examples=50)
@given(data=st.data(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8), size=st.integers(1, 60))
def test_order_of_samples_depends_on_neither_world_size_nor_batch_sizes(
    data: st.DataObject, sizes: list[int], size: int
) -> None:
    world_size = data.draw(st.integers(1, 5))
    micro = data.draw(st.integers(1, 10))
    by_rank = [
        list(feed(Numbers(size), tuple(sizes), rank=rank, world_size=world_size, micro=micro))
        for rank in range(world_size)
    ]
    together = [sample for updates in zip(*by_rank, strict=True) for update in updates for sample in seen([update])]
    assert together == SampleStream(Numbers(size), 5).fetch(np.arange(sum(sizes)))["index"].tolist()


@pytest.mark.parametrize(("world_size", "workers", "micro"), [(1, 0, 4), (1, 2, 3), (2, 1, 5), (3, 0, 2)])
def test_random_augmentation_is_the_same_at_any_world_size_and_worker_count(
    world_size: int, workers: int, micro: int
) -> None:
    sizes = (7, 5, 12, 2)
    expected = SampleStream(Augmented(10), 5).fetch(np.arange(26))
    by_rank = [
        list(feed(Augmented(10), sizes, rank=rank, world_size=world_size, micro=micro, workers=workers))
        for rank in range(world_size)
    ]
    rows = [update for updates in zip(*by_rank, strict=True) for update in updates]
    assert seen(rows) == expected["index"].tolist()
    assert seen(rows, "noise") == expected["noise"].tolist()
    assert len({tuple(noise) for noise in seen(rows, "noise")}) == 26  # a sample seen again is augmented anew


def test_update_batch_carries_its_step_first_ordinal_and_size() -> None:
    plan = Plan(lr=0.5, batch=6, run_length="20 samples")
    updates = list(Feed(SampleStream(Numbers(9)), plan, Clock(), micro=4))
    assert [(update.first_ordinal, update.step.batch_size) for update in updates] == [(0, 6), (6, 6), (12, 6), (18, 2)]
    assert [update.step for update in updates[:1]] == [plan.at(Clock())]
    assert [[len(micro.batch["index"]) for micro in update.micro_batches] for update in updates] == [
        [4, 2],
        [4, 2],
        [4, 2],
        [2],
    ]


def test_feed_that_begins_in_the_middle_goes_on_with_the_same_samples() -> None:
    whole = list(feed(Augmented(10), (3, 4, 5, 6), micro=3))
    rest = list(feed(Augmented(10), (3, 4, 5, 6), Clock(samples=7, updates=2), micro=3))
    assert seen(rest) == seen(whole[2:])
    assert seen(rest, "noise") == seen(whole[2:], "noise")


def test_ranks_without_samples_repeat_one_with_weight_zero_and_are_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "gradwire"):
        updates = list(feed(Numbers(9), (2, 2), rank=3, world_size=4, micro=1))
    first = SampleStream(Numbers(9), 5).fetch(np.array([0]))["index"].tolist()
    assert [micro.weight for micro in updates[0].micro_batches] == [0]
    assert updates[0].micro_batches[0].batch["index"].tolist() == first
    assert [record.getMessage() for record in caplog.records] == [
        "a global batch of 2 samples leaves some of the 4 ranks without any: they wait for the others"
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_leaves_the_global_generators_as_they_were(workers: int) -> None:
    states = [torch.get_rng_state(), np.random.get_state()[1]]
    list(feed(Augmented(10), (5, 5), micro=2, workers=workers))
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])


def test_workers_do_the_reading() -> None:
    updates = list(Feed(SampleStream(WhichWorker()), Sizes((6, 6)), Clock(), micro=2, workers=2))
    assert [micro.batch.unique().tolist() for update in updates for micro in update.micro_batches] == [
        [0],
        [1],
        [0],
        [1],
        [0],
        [1],
    ]


def test_error_in_a_worker_shows_the_dataset_s_own_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        list(Feed(SampleStream(Broken(20, 13)), Sizes((20,)), Clock(), micro=5, workers=2))
    assert "_decode_picture" in str(caught.value)
    assert "picture 13 has no pixels" in str(caught.value)
    assert "raised by sample 13 of Broken, which has 20 samples" in str(caught.value)


def test_error_in_this_process_names_the_sample() -> None:
    with pytest.raises(KeyError) as caught:
        list(Feed(SampleStream(Broken(20, 13)), Sizes((20,)), Clock(), micro=5))
    assert caught.value.__notes__ == ["raised by sample 13 of Broken, which has 20 samples"]


def test_closing_the_feed_ends_its_workers() -> None:
    running = feed(Numbers(100), (4,) * 100, micro=2, workers=2)
    workers = started_by(iter(running))
    assert len(workers) == 2
    running.close()
    _, alive = psutil.wait_procs(workers, timeout=300)
    assert alive == []


def test_workers_outlive_a_signal_that_asks_the_run_to_stop() -> None:
    running = feed(Numbers(400), (4,) * 100, micro=2, workers=2)
    updates = iter(running)
    for child in started_by(updates):
        os.kill(child.pid, signal.SIGTERM)
        os.kill(child.pid, signal.SIGINT)
    assert len(list(updates)) == 99
    running.close()


def test_feed_can_be_iterated_over_again() -> None:
    again = feed(Numbers(20), (4, 4), micro=2, workers=1)
    assert seen(list(again)) == seen(list(again))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank must lie in 0 … 1, found 2"),
        ({"micro": 0}, "micro must be at least 1"),
        ({"workers": -1}, "workers at least 0"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        feed(Numbers(3), (1,), **arguments)
