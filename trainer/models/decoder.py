"""A present-day decoder-only transformer.

Shapes: B batch, T tokens, D width, H query heads, K key/value heads, G query heads that share a key/value head (H/K), E
head width, F feed-forward width, N parts of it, V vocabulary.
"""

import functools
import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.inference import Cache, Layout, Rotation, rotate
from gradwire.trainer.config.range import Range
from gradwire.trainer.models.errors import ModelError
from gradwire.trainer.models.normed import normed

Attend = Callable[[Tensor], Tensor]  # of queries, keys and values side by side, in a cache


class Decoder(nn.Module):
    """Decoder with rotary positions (2104.09864), RMS norms before each part (1910.07467), SwiGLU (2002.05202) and
    grouped-query attention (2305.13245).

    Args:
        vocabulary: Number of token ids.
        context: Most tokens that it sees.
        width: Width of the residual stream.
        layers: Number of blocks.
        heads: Query heads; they divide the width.
        kv_heads: Key/value heads; they divide the query heads. Equal to `heads` it is ordinary multi-head attention.
        feed_forward: Inner width of the feed-forward part; null takes 8/3 of the width, rounded up to a multiple of 32.
        dropout: Probability of dropping an activation of each part's output while training.
        tied: Whether the output projection shares the embedding's weights.
        rope_base: Base of the rotary frequencies.

    Raises:
        ModelError: the sizes do not fit together.
    """

    default_loss = "next_token"

    def __init__(
        self,
        vocabulary: Annotated[int, Range(ge=1)] = 256,
        context: Annotated[int, Range(ge=1)] = 256,
        width: Annotated[int, Range(ge=1)] = 256,
        layers: Annotated[int, Range(ge=1)] = 4,
        heads: Annotated[int, Range(ge=1)] = 4,
        kv_heads: Annotated[int, Range(ge=1)] = 2,
        feed_forward: Annotated[int, Range(ge=1)] | None = None,
        dropout: Annotated[float, Range(ge=0, lt=1)] = 0.0,
        tied: bool = True,
        rope_base: Annotated[float, Range(gt=0)] = 10_000.0,
    ) -> None:
        super().__init__()
        inner = -(-width * 8 // 3 // 32) * 32 if feed_forward is None else feed_forward
        _check_positive(
            vocabulary=vocabulary,
            context=context,
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            feed_forward=inner,
        )
        _check(width, heads, kv_heads, dropout)
        self.vocabulary = vocabulary
        self.context = context
        self.rope_base = rope_base
        self.head_width = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, inner, dropout) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.tied = tied
        self.shares = 1  # ranks that share each block's heads
        self._rotation: Tensor | None = None  # derived from the sizes: neither saved nor broadcast
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw initial weights: normal with deviation 0.02, the projections into the residual stream ÷ √(2·layers)."""
        if self.tied:  # here, because leaving the meta device unties them
            self.output.weight = self.embedding.weight
        residual = 0.02 / math.sqrt(2 * len(self.blocks))
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=residual if name.endswith(("attend.weight", "down.weight")) else 0.02)

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V] of the next token at each position of `ids_BT` [B, T].

        Args:
            ids_BT: The tokens.
            positions_BT: Where rows hold several documents, each token's position in its own: 0 begins another, and no
                token sees beyond its document. Without, a row is one document.
            cache: Keys and values of the tokens before, which says their positions; only the last one's logits
                [B, 1, V] are made then.

        Raises:
            ModelError: more tokens than the context.
            CacheFullError: more tokens than the cache holds.
        """
        if cache is not None:
            return self._continue(ids_BT, cache)
        tokens = ids_BT.shape[1]
        if tokens > self.context:
            raise ModelError(f"{tokens} tokens were given where the model's context is {self.context}")
        x_BTD = self.embedding(ids_BT)
        rotation, mask_B1TT = self._rotation_on(x_BTD.device)[:, :tokens], None
        if positions_BT is not None:
            rotation, mask_B1TT = rotation[:, positions_BT][:, :, None, None], within_documents(positions_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, rotation, mask_B1TT)
        logits_BTV: Tensor = self.output(self.norm(x_BTD))
        return logits_BTV

    def _continue(self, ids_BT: Tensor, cache: Cache) -> Tensor:
        cache.begin(ids_BT.shape[1])
        x_BTD = self.embedding(ids_BT)
        for layer, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, None, attend=functools.partial(cache.attend_grouped, layer))
        logits_B1V: Tensor = self.output(normed(self.norm, cache.wanted(x_BTD)))
        return logits_B1V

    def kv_layout(self) -> Layout:
        """What it keeps of each token for generation."""
        block, weight = self.blocks[0], self.embedding.weight
        assert isinstance(block, Block), "a decoder has no others"
        return Layout(
            layers=len(self.blocks),
            kv_heads=block.kv_heads // self.shares,
            head_width=self.head_width,
            dtype=weight.dtype,
            device=weight.device,
            context=self.context,
            rotation=Rotation(self._frequencies(weight.device), self._rotation_on(weight.device)),
            packed=True,
            forgets=all(type(each) is nn.Parameter for each in self.parameters()),  # sharded ones are gathered and kept
        )

    def _frequencies(self, device: torch.device) -> Tensor:
        """Radians by which each pair of a head turns from one position to the next [E/2]."""
        exponents_E = torch.arange(0, self.head_width, 2, device=device) / self.head_width
        return self.rope_base**-exponents_E

    def _rotation_on(self, device: torch.device) -> Tensor:
        """Cosines and sines [2, context, E/2], made once on the device that computes."""
        if self._rotation is None or self._rotation.device != device:
            self._rotation = self._make_rotation(device)
        return self._rotation

    @torch.inference_mode(False)  # made while sampling, it must serve training as well
    def _make_rotation(self, device: torch.device) -> Tensor:
        angles_TE = torch.outer(torch.arange(self.context, device=device), self._frequencies(device))
        return torch.stack([angles_TE.cos(), angles_TE.sin()])

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of forward and backward a token: 6 a weight that multiplies, and 12·L·D·T for
        attention (Chowdhery 2022, 2204.02311, appendix B)."""
        weights = sum(p.numel() for p in self.parameters() if p.dim() >= 2)
        if not self.tied:
            weights -= self.embedding.weight.numel()
        return 6.0 * weights + 12.0 * len(self.blocks) * self.embedding.embedding_dim * self.context


class Block(nn.Module):
    """Attention, then a gated feed-forward part, each behind a norm and added to the stream.

    What is computed from one input is one matrix. Its rows lie as they are used together: those of the G query heads
    that share a key/value head, then its key and value, K times; and the gates of a part of the feed-forward
    width, then what they gate, N times. So neighboring rows are whole heads and parts, and ranks can split them.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.parts = math.gcd(feed_forward, kv_heads)
        self.attention_norm = nn.RMSNorm(width, eps=1e-6)
        self.grouped_qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=False)
        self.attend = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.gate_up = nn.Linear(width, 2 * feed_forward, bias=False)
        self.part_width = feed_forward // self.parts
        self.down = nn.Linear(feed_forward, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x_BTD: Tensor,
        rotation: Tensor | None,
        mask_B1TT: Tensor | None = None,
        attend: Attend | None = None,
    ) -> Tensor:
        if attend is not None:
            return self._continue(x_BTD, attend)
        assert rotation is not None, "a cache alone knows positions by itself"
        x_BTD = x_BTD + self._dropped(self._attention(self.attention_norm(x_BTD), rotation, mask_B1TT))
        return x_BTD + self._dropped(self._feed_forward(self.feed_forward_norm(x_BTD)))

    def _continue(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        """With a cache; in few operations, since for one token their number is what takes the time."""
        x_BTD = x_BTD + self._dropped(self.attend(attend(self._grouped(normed(self.attention_norm, x_BTD)))))
        return x_BTD + self._dropped(self._feed_forward(normed(self.feed_forward_norm, x_BTD)))

    def _dropped(self, x_BTD: Tensor) -> Tensor:
        """After dropout, while training: a step of generation notices every call."""
        dropped_BTD: Tensor = self.dropout(x_BTD) if self.dropout.training else x_BTD
        return dropped_BTD

    def _grouped(self, x_BTD: Tensor) -> Tensor:
        """For each key/value head its queries, its key and its value [B, T, K, G + 2, E]."""
        group = self.heads // self.kv_heads
        grouped: Tensor = self.grouped_qkv(x_BTD)
        return grouped.view(*x_BTD.shape[:2], -1, group + 2, self.head_width)

    def _attention(self, x_BTD: Tensor, rotation: Tensor, mask_B1TT: Tensor | None = None) -> Tensor:
        batch, tokens, _ = x_BTD.shape
        qkv_BKMTE = self._grouped(x_BTD).permute(0, 2, 3, 1, 4)
        mixed_BHTE = functional.scaled_dot_product_attention(
            rotate(qkv_BKMTE[:, :, :-2], rotation).flatten(1, 2),
            rotate(qkv_BKMTE[:, :, -2:-1], rotation).flatten(1, 2),
            qkv_BKMTE[:, :, -1],
            mask_B1TT,
            is_causal=mask_B1TT is None,
            enable_gqa=self.heads != self.kv_heads,
        )
        mixed_BTD: Tensor = self.attend(mixed_BHTE.transpose(1, 2).reshape(batch, tokens, -1))
        return mixed_BTD

    def _feed_forward(self, x_BTD: Tensor) -> Tensor:
        both_BTF = self.gate_up(x_BTD)
        gate_BTNF, up_BTNF = both_BTF.view(*both_BTF.shape[:-1], -1, 2, self.part_width).unbind(-2)
        out_BTD: Tensor = self.down((functional.silu(gate_BTNF) * up_BTNF).flatten(-2))
        return out_BTD


def within_documents(positions_BT: Tensor) -> Tensor:
    """Which tokens [B, 1, T, T] each token sees where rows hold several documents: those before it in its own."""
    document_BT = (positions_BT == 0).cumsum(1)
    return (document_BT[:, None, :, None] == document_BT[:, None, None, :]).tril()


def _check(width: int, heads: int, kv_heads: int, dropout: float) -> None:
    """Refuse sizes that do not fit together."""
    if width % heads:
        raise ModelError(f"heads must divide width, found heads={heads} and width={width}")
    if heads % kv_heads:
        raise ModelError(f"kv_heads must divide heads, found kv_heads={kv_heads} and heads={heads}")
    if (width // heads) % 2:
        raise ModelError(f"width / heads must be even for rotary positions, found {width} / {heads} = {width // heads}")
    if not 0.0 <= dropout < 1.0:
        raise ModelError(f"dropout must lie in [0, 1), found {dropout}")


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelError(f"{name} must be at least 1, found {size}")
