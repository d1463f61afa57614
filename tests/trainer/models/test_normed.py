import pytest
import torch
from torch import Tensor, nn

from gradwire.trainer.models.normed import normed


@pytest.mark.parametrize("size", [1e-12, 1e-3, 1.0, 1e3])
def test_a_norm_in_few_operations_is_the_norm(size: float) -> None:
    norm = nn.RMSNorm(48, eps=1e-6)
    nn.init.normal_(norm.weight)
    x_BTD = size * torch.randn(3, 2, 48)
    torch.testing.assert_close(normed(norm, x_BTD), norm(x_BTD), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("norm", [nn.RMSNorm(8), nn.RMSNorm(8, eps=1e-6).double(), nn.RMSNorm(8, eps=1e-6).bfloat16()])
def test_other_precisions_take_the_norm_itself(norm: nn.RMSNorm) -> None:
    x_BTD: Tensor = torch.randn(2, 1, 8).to(norm.weight.dtype)
    assert torch.equal(normed(norm, x_BTD), norm(x_BTD))
