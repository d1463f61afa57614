import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm import AllReduce
from gradwire.schedulers import Clock, Plan
from gradwire.trainer.data import Feed, SampleStream
from gradwire.trainer.data.feed import Cut, few_shapes, fewest_passes
from gradwire.trainer.errors import NonFiniteError
from gradwire.trainer.losses import IGNORED, NextToken
from gradwire.trainer.precision import Precision
from gradwire.trainer.strategies import DataParallel, Single, Strategy
from gradwire.trainer.update import Updater

CPU = torch.device("cpu")
SAMPLES, TOKENS, VOCABULARY = 13, 7, 11


class Padded:
    """Sequences of unequal lengths, padded: sample k has 1 + k mod 7 valid targets."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, VOCABULARY, (TOKENS + 1,), generator=generator)
        labels = ids[1:].clone()
        labels[1 + index % TOKENS :] = IGNORED
        return {"input_ids": ids[:-1], "labels": labels}


class Float64NextToken(NextToken):
    """NextToken computes its softmax in float32; the comparison needs float64 throughout."""

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        logits = model(batch["input_ids"]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch["labels"].flatten(), ignore_index=IGNORED, reduction="sum")


def language_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, VOCABULARY)).double()


def big_batch_gradient() -> list[torch.Tensor]:
    """The gradient of the mean loss over all valid targets, computed in one pass."""
    model, loss = language_model(), Float64NextToken()
    batch = SampleStream(Padded()).fetch(range(SAMPLES))  # type: ignore[arg-type]
    (loss(model, batch) / loss.count(batch)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def step_taken(strategy: Strategy, micro: int, cut: Cut = fewest_passes) -> list[torch.Tensor]:
    """What one update of plain SGD with learning rate 1 subtracts: the gradient that the trainer applied."""
    model = language_model()
    before = copy.deepcopy(list(model.parameters()))
    model = strategy.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    updater = Updater(model, Float64NextToken(), optimizer, strategy, Precision("fp32", CPU))
    plan = Plan(lr=1.0, batch=SAMPLES, run_length="1 updates")
    rank, world_size = strategy.rank, strategy.world_size
    feed = Feed(SampleStream(Padded()), plan, Clock(), rank=rank, world_size=world_size, micro=micro, cut=cut)
    for batch in feed:
        updater.run(batch, 0)
    return [old.detach() - new.detach() for old, new in zip(before, model.parameters(), strict=True)]


@pytest.mark.parametrize("cut", [fewest_passes, few_shapes])
@pytest.mark.parametrize("micro", [1, 3, 5, 13, 20])
def test_unequal_padded_micro_batches_give_the_big_batch_gradient(micro: int, cut: Cut) -> None:
    torch.testing.assert_close(step_taken(Single(CPU), micro, cut), big_batch_gradient(), rtol=1e-12, atol=1e-14)


def _matches_on_three_ranks(rank: int) -> None:
    assert dist.get_world_size() == 3  # shares of 5, 4 and 4 samples; micro-batches of 3 and 2, 3 and 1
    strategy = DataParallel(AllReduce(), CPU)
    torch.testing.assert_close(step_taken(strategy, 3), big_batch_gradient(), rtol=1e-12, atol=1e-14)
    cut = step_taken(strategy, 4, few_shapes)  # passes of 4 and 1; the others make a second one of weight 0
    torch.testing.assert_close(cut, big_batch_gradient(), rtol=1e-12, atol=1e-14)


def test_unequal_shares_of_three_ranks_give_the_big_batch_gradient(ranks: Callable[..., None]) -> None:
    ranks(3, _matches_on_three_ranks)


def _matches_with_idle_ranks(rank: int) -> None:
    strategy = DataParallel(AllReduce(), CPU)
    model = strategy.prepare(language_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    updater = Updater(model, Float64NextToken(), optimizer, strategy, Precision("fp32", CPU))
    plan = Plan(lr=1.0, batch=2, run_length="1 updates")
    feed = Feed(SampleStream(Padded()), plan, Clock(), rank=rank, world_size=3, micro=4)
    for batch in feed:
        outcome = updater.run(batch, 0)
        assert outcome.targets == Float64NextToken().count(SampleStream(Padded()).fetch(range(2)))  # type: ignore[arg-type]
    whole = language_model()
    loss, pair = Float64NextToken(), SampleStream(Padded()).fetch(range(2))  # type: ignore[arg-type]
    (loss(whole, pair) / loss.count(pair)).backward()
    for applied, start in zip(model.parameters(), whole.parameters(), strict=True):
        assert start.grad is not None
        torch.testing.assert_close(applied.detach(), start.detach() - start.grad, rtol=1e-12, atol=1e-14)


def test_a_rank_without_samples_changes_nothing(ranks: Callable[..., None]) -> None:
    ranks(3, _matches_with_idle_ranks)


class Poisoned(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.value = value

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (self.weight * self.value).expand(*ids.shape, VOCABULARY)


def poisoned_update(non_finite: Any) -> tuple[Poisoned, Any]:
    model = Poisoned(float("nan"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    updater = Updater(model, NextToken(), optimizer, Single(CPU), Precision("fp32", CPU), non_finite=non_finite)
    feed = Feed(SampleStream(Padded()), Plan(lr=1.0, batch=4, run_length="1 updates"), Clock(), micro=4)
    (outcome,) = [updater.run(batch, 0) for batch in feed]
    return model, outcome


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_samples() -> None:
    with pytest.raises(NonFiniteError, match=r"update 0: .*samples 0 to 3.*non_finite=skip"):
        poisoned_update("raise")


def test_a_skipped_update_leaves_the_weights_and_is_reported() -> None:
    model, outcome = poisoned_update("skip")
    assert outcome.skipped
    assert model.weight.item() == 1.0


def test_clipping_scales_the_gradient_to_the_limit() -> None:
    model = language_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    updater = Updater(model, Float64NextToken(), optimizer, Single(CPU), Precision("fp32", CPU), clip=1e-3)
    feed = Feed(SampleStream(Padded()), Plan(lr=1.0, batch=4, run_length="1 updates"), Clock(), micro=4)
    (outcome,) = [updater.run(batch, 0) for batch in feed]
    moved = torch.cat([(b - p.detach()).flatten() for b, p in zip(before, model.parameters(), strict=True)])
    assert outcome.grad_norm > 1e-3
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-6)
