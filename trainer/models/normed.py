"""RMS norms in few operations."""

import functools
import math

import torch
from torch import Tensor, nn


def normed(norm: nn.RMSNorm, x_BTD: Tensor) -> Tensor:
    """What the norm makes of activations [..., D], to rounding.

    On the CPU the norm of PyTorch is eight small operations, and a token has two norms in each layer. Here it is four:
    √D·x / √(|x|² + D·ε), times the weights.

    Args:
        norm: Over the last axis.
        x_BTD: Activations.
    """
    weight, width, eps = norm.weight, x_BTD.shape[-1], norm.eps
    single = x_BTD.is_cpu and x_BTD.dtype == weight.dtype == torch.float32
    if not single or eps is None or torch.compiler.is_compiling():
        out_BTD: Tensor = norm(x_BTD)
        return out_BTD
    length_BT1 = torch.linalg.vector_norm(x_BTD, 2, -1, keepdim=True).hypot(_scalar(math.sqrt(width * eps)))
    return torch.addcdiv(_scalar(0.0), x_BTD, length_BT1, value=math.sqrt(width)) * weight


@functools.cache
@torch.inference_mode(False)
def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")
