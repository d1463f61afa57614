import pytest
import torch
from torch import nn

from gradwire.trainer.ema import MovingAverage
from gradwire.trainer.errors import StateMismatchError


def test_the_average_follows_the_formula_and_buffers_are_copied() -> None:
    model = nn.BatchNorm1d(2)
    average = MovingAverage(model, 0.75)
    with torch.no_grad():
        model.weight.fill_(5.0)
        assert model.running_mean is not None
        model.running_mean.fill_(3.0)
    average.update()
    state = average.state_dict()
    assert state["weight"].tolist() == [0.75 * 1.0 + 0.25 * 5.0] * 2
    assert state["running_mean"].tolist() == [3.0, 3.0]


def test_weights_are_restored_bit_for_bit_even_after_an_error() -> None:
    model = nn.Linear(3, 3)
    average = MovingAverage(model, 0.5)
    with torch.no_grad():
        model.weight.normal_()
    own = model.weight.detach().clone()
    with pytest.raises(ZeroDivisionError), average.applied():
        assert not torch.equal(model.weight, own)
        raise ZeroDivisionError
    assert torch.equal(model.weight, own)


def test_a_decay_outside_the_open_unit_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        MovingAverage(nn.Linear(1, 1), 1.0)


def test_an_average_of_another_model_is_refused() -> None:
    average = MovingAverage(nn.Linear(1, 1), 0.5)
    with pytest.raises(StateMismatchError, match="bias"):
        average.load_state_dict({"weight": torch.ones(1, 1)})
