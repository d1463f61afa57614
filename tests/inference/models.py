"""What the tests of generation share: small models, and what their caches are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwire.inference import Cache, CachedModel, Rotation
from gradwire.trainer.models import Decoder


def decoder(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"vocabulary": 61, "context": 64, "width": 48, "layers": 2, "heads": 4, "kv_heads": 2} | changes
    model = Decoder(**sizes).eval()
    for parameter in model.parameters():  # fresh weights predict all tokens about equally
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.15)
    return model


def prompts(lengths: Sequence[int], vocabulary: int = 61) -> list[list[int]]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows behind padding [B, T], and how much each has [B]."""
    longest = max(map(len, rows))
    padding = torch.tensor([longest - len(row) for row in rows])
    return torch.tensor([[7] * (longest - len(row)) + list(row) for row in rows]), padding


def logits_by_step(
    model: CachedModel, cache: Cache, rows: Sequence[Sequence[int]], following: Tensor, chunk: int | None = None
) -> Tensor:
    """Logits [steps, B, V] after the prompts and after each of the tokens `following` [B, N]."""
    cache.reset(len(rows))
    ids_BT, padding_B = padded(rows)
    cache.pad(padding_B)
    with torch.no_grad():
        found = [[model(piece, cache=cache)[:, -1] for piece in ids_BT.split(chunk or 10**9, 1)][-1]]
        found += [model(ids_B[:, None], cache=cache)[:, -1] for ids_B in following.unbind(1)]
    return torch.stack(found)


def recomputed(model: Callable[[Tensor], Tensor], rows: Sequence[Sequence[int]], following: Tensor) -> Tensor:
    """The same without any cache, each row by itself."""
    steps = following.shape[1] + 1
    with torch.no_grad():
        found = [
            model(torch.tensor([list(row) + new.tolist()]))[0, -steps:]
            for row, new in zip(rows, following, strict=True)
        ]
    return torch.stack(found, 1)


def windowed_by_definition(model: Decoder, ids: Sequence[int], length: int, kept: int) -> Tensor:
    """Logits [T, V] of a window's definition, by a loop over queries: each sees the first and the last tokens, at the
    positions that they have within a cache of `length` when it comes; single precision tables of those positions."""
    rotation = Rotation(model._frequencies(torch.device("cpu")))
    x_TD = model.embedding(torch.tensor(ids))
    for block in model.blocks:
        x_TD = x_TD + _windowed_attention(block, block.attention_norm(x_TD), rotation, length, kept)
        gate, up = block.gate_up(block.feed_forward_norm(x_TD)).unflatten(-1, (-1, 2, block.part_width)).unbind(-2)
        x_TD = x_TD + block.down((functional.silu(gate) * up).flatten(-2))
    logits: Tensor = model.output(model.norm(x_TD))
    return logits


def _windowed_attention(block: Any, x_TD: Tensor, rotation: Rotation, length: int, kept: int) -> Tensor:
    group = block.heads // block.kv_heads
    qkv = block.grouped_qkv(x_TD).view(len(x_TD), block.kv_heads, group + 2, block.head_width)
    out = []
    for t in range(len(x_TD)):
        visible = [s for s in range(t + 1) if s < kept or s > t - (length - kept)]
        turn = rotation.at(torch.arange(len(visible)))  # positions within the cache: 0 to its length - 1
        q_KGE, k_SKE, v_SKE = qkv[t, :, :group], qkv[visible, :, group], qkv[visible, :, group + 1]
        turned_k = _turn(k_SKE, turn[:, :, None])
        turned_q = _turn(q_KGE, turn[:, -1])
        weights = torch.einsum("kge,ske->kgs", turned_q, turned_k).div(block.head_width**0.5).softmax(-1)
        out.append(block.attend(torch.einsum("kgs,ske->kge", weights, v_SKE).flatten()))
    return torch.stack(out)


def _turn(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotation of pairs, as complex numbers."""
    first, second = x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.complex(rotation[0], rotation[1])
    return torch.cat([turned.real, turned.imag], -1)
