import copy
from collections.abc import Callable

import torch
from torch import nn

from gradwire.trainer.sync_batchnorm import SyncBatchNorm, synchronize_batch_norms


def test_every_batch_norm_is_replaced_with_the_same_state() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm2d(2)))
    names = list(model.state_dict())
    converted = synchronize_batch_norms(model)
    assert isinstance(converted[1], SyncBatchNorm)  # type: ignore[index]
    assert isinstance(converted[2][0], SyncBatchNorm)  # type: ignore[index]
    assert list(converted.state_dict()) == names


def _matches_one_big_batch(rank: int) -> None:
    torch.manual_seed(0)
    whole = torch.randn(10, 3, 4, 4, dtype=torch.float64).float()
    reference = nn.BatchNorm2d(3)
    synchronized = synchronize_batch_norms(copy.deepcopy(reference))
    inputs = whole.clone().requires_grad_()
    weight = torch.randn_like(whole)
    (reference(inputs) * weight).sum().backward()
    share = slice(0, 4) if rank == 0 else slice(4, 10)  # unequal shares
    mine = whole[share].clone().requires_grad_()
    outputs = synchronized(mine)
    (outputs * weight[share]).sum().backward()
    torch.testing.assert_close(mine.grad, inputs.grad[share], rtol=1e-4, atol=1e-5)  # type: ignore[index]
    torch.testing.assert_close(synchronized.running_mean, reference.running_mean)
    torch.testing.assert_close(synchronized.running_var, reference.running_var)


def test_two_ranks_normalize_as_one_big_batch(ranks: Callable[..., None]) -> None:
    ranks(2, _matches_one_big_batch)


def test_evaluation_uses_the_running_statistics() -> None:
    reference = nn.BatchNorm1d(2).eval()
    inputs = torch.randn(5, 2)
    assert torch.equal(synchronize_batch_norms(copy.deepcopy(reference))(inputs), reference(inputs))
