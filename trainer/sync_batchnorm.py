"""Batch normalization over the samples of all ranks, on any backend.

Statistics of a batch-norm layer depend on the micro-batch. With this layer they are those of the ranks' micro-batches
together, so that a run on more ranks normalizes as one with a larger micro-batch would (Peng 2017, 1711.07240).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _Sum(torch.autograd.Function):
    """Sum over the ranks; the gradient of a sum that every rank uses is summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum_over_ranks(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """`torch.nn.BatchNorm1d/2d/3d` whose training statistics span all ranks; same parameters, buffers and names."""

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"expected an input of at least 2 axes (batch, channels, …), found shape {tuple(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        values = x.float()
        local_count = values.new_full((1,), values.numel() / values.shape[1])
        sums_C1 = _sum_over_ranks(torch.cat([values.sum(axes), local_count]))
        count = sums_C1[-1].detach()
        mean_C = sums_C1[:-1] / count
        centered = values - mean_C.view(shape)
        var_C = _sum_over_ranks(centered.square().sum(axes)) / count
        self._follow(mean_C.detach(), var_C.detach() * (count / (count - 1).clamp(min=1)))
        normal = centered * (var_C + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(x.dtype)

    @torch.no_grad()
    def _follow(self, mean_C: Tensor, unbiased_var_C: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean_C, share)
        self.running_var.lerp_(unbiased_var_C, share)


def synchronize_batch_norms(model: nn.Module) -> nn.Module:
    """Replace every batch-norm layer of `model`, in place, by one that spans the ranks; the module to use instead."""
    if isinstance(model, nn.modules.batchnorm._BatchNorm) and not isinstance(model, SyncBatchNorm):
        return _converted(model)
    for name, child in list(model.named_children()):
        setattr(model, name, synchronize_batch_norms(child))
    return model


def _converted(layer: nn.modules.batchnorm._BatchNorm) -> SyncBatchNorm:
    converted = SyncBatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    converted.load_state_dict(layer.state_dict())
    converted.train(layer.training)
    return converted
