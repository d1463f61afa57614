from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from gradwire.trainer.errors import LossError
from gradwire.trainer.losses import IGNORED, Classification, NextToken, PerSample, batch_size, loss_for, move


class Fixed(nn.Module):
    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_next_token_sums_over_valid_labels_only() -> None:
    logits_BTV = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    labels_BT = torch.tensor([[1, IGNORED, 2], [IGNORED, IGNORED, 4]])
    batch = {"input_ids": torch.zeros(2, 3, dtype=torch.int64), "labels": labels_BT}
    log_p = logits_BTV.log_softmax(-1)
    expected = -(log_p[0, 0, 1] + log_p[0, 2, 2] + log_p[1, 2, 4])
    assert NextToken().count(batch) == 3
    torch.testing.assert_close(NextToken()(Fixed(logits_BTV), batch), expected)


def test_next_token_evaluates_without_label_smoothing() -> None:
    logits_BTV = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": torch.zeros(1, 2, dtype=torch.int64), "labels": torch.tensor([[1, 3]])}
    smooth = NextToken(label_smoothing=0.5)
    plain = functional.cross_entropy(logits_BTV.flatten(0, 1), batch["labels"].flatten(), reduction="sum")
    torch.testing.assert_close(smooth.measures(Fixed(logits_BTV), batch)["loss"], plain)
    assert not torch.isclose(smooth(Fixed(logits_BTV), batch), plain)


def test_classification_measures_accuracy() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    batch = {"image": torch.zeros(3, 1), "label": torch.tensor([0, 0, 0])}
    assert Classification().measures(Fixed(logits), batch)["accuracy"].item() == 2


def test_a_mean_loss_is_refused_with_what_to_do() -> None:
    mean = PerSample(lambda model, batch: batch["x"].mean())
    with pytest.raises(LossError, match=r"reduction='none'"):
        mean(nn.Identity(), {"x": torch.ones(3)})


def test_a_function_is_taken_as_one_loss_a_sample() -> None:
    loss = loss_for(nn.Identity(), lambda model, batch: model(batch["x"]) ** 2)
    batch = {"x": torch.tensor([1.0, 2.0], requires_grad=True)}
    assert (loss.count(batch), loss(nn.Identity(), batch).item()) == (2, 5.0)


def test_a_model_without_a_loss_is_told_which_there_are() -> None:
    with pytest.raises(LossError, match="next_token"):
        loss_for(nn.Linear(1, 1), None)


def test_batch_size_reads_trees_and_refuses_a_batch_without_tensors() -> None:
    assert batch_size({"a": [torch.ones(4, 2)]}) == 4
    with pytest.raises(LossError, match="at least one tensor"):
        batch_size({"a": "text"})


def test_move_keeps_the_tree() -> None:
    moved = move({"a": (torch.ones(1), "text")}, torch.device("meta"))
    assert moved["a"][0].device.type == "meta"
    assert moved["a"][1] == "text"


def test_a_batch_keeps_its_form_when_it_moves() -> None:
    pair = namedtuple("pair", ["x", "y"])
    moved = move(pair(torch.ones(2), [torch.zeros(1)]), torch.device("cpu"))
    assert type(moved) is pair
    assert torch.equal(moved.x, torch.ones(2))
    assert torch.equal(moved.y[0], torch.zeros(1))
