import pytest
import torch
from torch import nn

from gradwire.trainer.micro_batch import Untouched, largest_micro_batch


def fits_up_to(most: int) -> tuple[list[int], object]:
    tried: list[int] = []

    def attempt(size: int) -> None:
        tried.append(size)
        if size > most:
            raise torch.OutOfMemoryError("out of memory")

    return tried, attempt


def test_the_size_is_halved_until_it_fits() -> None:
    tried, attempt = fits_up_to(7)
    assert largest_micro_batch(25, attempt, lambda answer: answer) == 7  # type: ignore[arg-type]
    assert tried == [25, 13, 7]


def test_one_rank_that_does_not_fit_decides_for_all() -> None:
    _, attempt = fits_up_to(100)
    answers = iter([False, True])
    assert largest_micro_batch(8, attempt, lambda answer: answer and next(answers)) == 4  # type: ignore[arg-type]


def test_nothing_fits_is_an_error_that_says_what_helps() -> None:
    _, attempt = fits_up_to(0)
    with pytest.raises(torch.OutOfMemoryError, match="shorter context"):
        largest_micro_batch(4, attempt, lambda answer: answer)  # type: ignore[arg-type]


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    def attempt(size: int) -> None:
        raise ValueError("shape")

    with pytest.raises(ValueError, match="shape"):
        largest_micro_batch(4, attempt, lambda answer: answer)


def test_a_rehearsal_leaves_buffers_and_gradients_as_they_were() -> None:
    model = nn.BatchNorm1d(2)
    with Untouched(model):
        model(torch.randn(8, 2)).sum().backward()
        assert model.weight.grad is not None
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [0.0, 0.0]
    assert model.weight.grad is None
