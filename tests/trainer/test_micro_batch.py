import weakref

import pytest
import torch
from torch import nn

from gradwire.trainer.micro_batch import Untouched, largest_micro_batch, most_that_fit


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


@pytest.mark.parametrize(
    ("limit", "most", "found"), [(100, 1000, 100), (70, 1000, 70), (100, 12, 12), (1000, 100, 96), (1, 5, 1)]
)
def test_sizes_double_and_then_the_distance_is_halved(limit: int, most: int, found: int) -> None:
    tried, attempt = fits_up_to(most)
    assert most_that_fit(limit, attempt, lambda answer: answer) == found  # type: ignore[arg-type]
    assert max(tried) <= min(limit, 2 * most)


def test_the_search_upwards_ends_where_one_rank_runs_out() -> None:
    _, attempt = fits_up_to(1000)
    own: list[bool] = []

    def other_rank_fits_three(answer: bool) -> bool:
        own.append(answer)
        return answer and len(own) not in (3, 5)  # sizes 1, 2, 4, 3

    assert most_that_fit(100, attempt, other_rank_fits_three) == 3  # type: ignore[arg-type]
    assert own == [True] * 4


def test_not_one_sample_is_an_error_upwards_too() -> None:
    _, attempt = fits_up_to(0)
    with pytest.raises(torch.OutOfMemoryError, match="shorter context"):
        most_that_fit(4, attempt, lambda answer: answer)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to …"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ],
)
def test_lack_of_memory_has_many_names(error: Exception) -> None:
    def attempt(size: int) -> None:
        if size > 2:
            raise error

    assert most_that_fit(8, attempt, lambda answer: answer) == 2


def test_memory_of_a_failed_attempt_is_free_before_ranks_agree() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def attempt(size: int) -> None:
        tensor = torch.ones(size)
        cycle: list[object] = [tensor]
        cycle.append(cycle)
        held.append(weakref.ref(tensor))
        if size > 1:
            raise torch.OutOfMemoryError("out of memory")

    def agree(answer: bool) -> bool:
        assert held[-1]() is None
        return answer

    assert most_that_fit(4, attempt, agree) == 1
