"""The arithmetic of training apart: the calendar, how parameters are dealt, the outer optimizer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradwire.trainer.errors import StrategyError
from gradwire.trainer.models import ConvNet, Decoder
from gradwire.trainer.strategies.outer import Calendar, OuterSGD, deal, mix


@given(st.integers(1, 6), st.integers(1, 6))
def test_every_fragment_is_due_once_in_every_stretch_of_its_length(fragments: int, spacing: int) -> None:
    calendar = Calendar(every=fragments * spacing, fragments=fragments)
    due = {updates: calendar.due(updates) for updates in range(3 * calendar.every + 1)}
    assert due[0] is None
    for fragment in range(fragments):
        at = [updates for updates, found in due.items() if found == fragment]
        assert at == [(fragment + 1) * spacing + turn * calendar.every for turn in range(3)]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 1, 0), "at least 1"),
        ((10, 3, 0), "no multiple of fragments, 3: .* write every 9"),
        ((10, 2, 5), "after every / fragments = 5 updates: write at most 4"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(numbers: tuple[int, int, int], words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        Calendar(*numbers)


def test_the_outer_optimizer_is_torchs_sgd_with_nesterov() -> None:
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(7, generator=generator), torch.randn(5, 7, generator=generator)
    ours, velocity, theirs = start.clone(), torch.zeros(7), nn.Parameter(start.clone())
    reference = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for gradient in gradients:
        OuterSGD(0.7, 0.9).step([ours], [velocity], [gradient])
        theirs.grad = gradient
        reference.step()
        assert torch.allclose(ours, theirs.detach(), rtol=1e-6, atol=1e-6)


def test_with_a_rate_of_one_and_no_momentum_the_outer_parameters_become_the_mean() -> None:
    hosts = torch.tensor([[1.0, 5.0], [3.0, -1.0]], dtype=torch.float64)
    outer, velocity = torch.tensor([10.0, 7.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for _ in range(2):
        OuterSGD(1.0, 0.0).step([outer], [velocity], [(outer - hosts).mean(0)])
        assert outer.tolist() == [2.0, 2.0]


def test_mixing_keeps_a_share_and_without_one_the_very_bits() -> None:
    own, outer = torch.tensor([1.0, 0.1]), torch.tensor([5.0, 0.3])
    mix([own], [outer], 0.25)
    assert own.tolist() == pytest.approx([4.0, 0.25])
    mix([own], [outer], 0.0)
    assert torch.equal(own, outer)


def test_blocks_are_dealt_in_turns_and_the_rest_to_the_smallest_fragment() -> None:
    model = Decoder(width=32, heads=2, kv_heads=2, layers=5, tied=False)
    first, second = ([name for name, _ in members] for members in deal(model, 2))
    assert {name.split(".")[1] for name in first if name.startswith("blocks")} == {"0", "2", "4"}
    assert {name.split(".")[1] for name in second if name.startswith("blocks")} == {"1", "3"}
    assert "embedding.weight" in second  # the smaller one by then


@pytest.mark.parametrize("model", [Decoder(width=32, heads=2, kv_heads=2, layers=3), ConvNet()], ids=["decoder", "net"])
@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_every_trained_parameter_is_in_one_fragment(model: nn.Module, fragments: int) -> None:
    model.requires_grad_(True)
    next(model.parameters()).requires_grad_(False)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    dealt = deal(model, fragments)
    assert all(dealt)
    assert sorted(name for members in dealt for name, _ in members) == sorted(trained)
    assert deal(model, fragments) == dealt


def test_more_fragments_than_parts_are_refused() -> None:
    with pytest.raises(StrategyError, match="fragments is 9 and the model has 2 parts"):
        deal(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 9)
