"""Attention over cached keys and values.

Shapes: B sequences, K key/value heads, G query heads that share one, T new tokens, S cached ones, E head width.
"""

from torch import Tensor
from torch.nn import functional


def attention(q_BKGTE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, mask_BTS: Tensor | None, causal: bool) -> Tensor:
    """softmax(QKᵀ/√E)V [B, K, G, T, E].

    Args:
        q_BKGTE: Queries.
        k_BKSE: Keys.
        v_BKSE: Values.
        mask_BTS: Which keys a query sees, [B or 1, T, S]; None is all of them.
        causal: The keys are those of the queries' own tokens, and each sees those up to itself; without a mask.
    """
    heads, group = q_BKGTE.shape[1:3]
    if causal:
        mixed_BHTE = functional.scaled_dot_product_attention(
            q_BKGTE.flatten(1, 2), k_BKSE, v_BKSE, is_causal=True, enable_gqa=group > 1
        )
        return mixed_BHTE.view(len(q_BKGTE), heads, group, *mixed_BHTE.shape[2:])
    # Queries that share keys are like queries of several tokens: so no key is copied for each of its queries.
    mask = None if mask_BTS is None else mask_BTS[:, None, None].expand(-1, -1, group, -1, -1).flatten(2, 3)
    mixed = functional.scaled_dot_product_attention(q_BKGTE.flatten(2, 3), k_BKSE, v_BKSE, attn_mask=mask)
    return mixed.view(q_BKGTE.shape)
