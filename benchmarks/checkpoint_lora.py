"""A decoder of which only low-rank additions to its matrices are trained (LoRA, arXiv 2106.09685)."""

import torch
from torch import Tensor, nn

from gradwire.trainer.models import Decoder


class LowRank(nn.Module):
    """A frozen linear layer and what is trained beside it: W x + B A x, B zero at first.

    Args:
        layer: The layer.
        rank: Rows of A.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.B = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + (x @ self.A.T) @ self.B.T
        return y


class LowRankDecoder(Decoder):
    """A decoder with low-rank additions to every linear layer of its blocks; all else is frozen.

    Args:
        rank: Of the additions.
        vocabulary: As the decoder's, like all that follows.
        context: The same.
        width: The same.
        layers: The same.
        heads: The same.
        kv_heads: The same.
        feed_forward: The same.
        dropout: The same.
        tied: The same.
        rope_base: The same.
    """

    def __init__(
        self,
        rank: int,
        vocabulary: int = 256,
        context: int = 256,
        width: int = 256,
        layers: int = 4,
        heads: int = 4,
        kv_heads: int = 2,
        feed_forward: int | None = None,
        dropout: float = 0.0,
        tied: bool = True,
        rope_base: float = 10_000.0,
    ) -> None:
        super().__init__(vocabulary, context, width, layers, heads, kv_heads, feed_forward, dropout, tied, rope_base)
        self.requires_grad_(False)
        for block in self.blocks:
            for name, layer in [*block.named_modules()]:
                if isinstance(layer, nn.Linear):
                    owner, _, attribute = name.rpartition(".")
                    setattr(block.get_submodule(owner), attribute, LowRank(layer, rank))
