"""Generation from any function of token ids to logits.

Shapes: B sequences, T tokens so far, N new ones, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.inference.errors import InferenceError
from gradwire.inference.sampling import Sampling


@torch.no_grad()
def generate(
    model: Callable[[Tensor], Tensor],
    prompt_BT: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    context: int | None = None,
    stop: int | None = None,
) -> Tensor:
    """Continue each prompt by up to `max_new_tokens` tokens; ids [B, T + N].

    Draws from a generator of its own, so the caller's random numbers stay as they are. Past `context` tokens the model
    sees the last `context` ones.

    Args:
        model: Token ids [B, T] to logits [B, T, V].
        prompt_BT: Token ids, at least one in each row.
        max_new_tokens: Most tokens to add.
        temperature: Divides the logits; 0 takes the likeliest token.
        top_k: Only the k likeliest tokens can be drawn.
        top_p: Only the likeliest tokens whose probabilities add up to p can be drawn.
        seed: Seeds the draws.
        context: Most tokens that the model can see; None is no limit.
        stop: Token id that ends a sequence; ended rows are filled up with it, and generation ends when all have.

    Raises:
        InferenceError: an empty prompt, or a value out of range.
    """
    if prompt_BT.dim() != 2 or prompt_BT.numel() == 0:
        raise InferenceError(f"a prompt must be token ids of shape [B, T] with T ≥ 1, found {tuple(prompt_BT.shape)}")
    if max_new_tokens < 0 or (context is not None and context < 1):
        raise InferenceError(
            f"max_new_tokens must be 0 or more and context at least 1, found {max_new_tokens} and {context}"
        )
    sampling = Sampling(temperature, top_k, top_p)
    generator = torch.Generator(prompt_BT.device).manual_seed(seed)
    ids_BT = prompt_BT
    ended_B = torch.zeros(len(prompt_BT), dtype=torch.bool, device=prompt_BT.device)
    for _ in range(max_new_tokens):
        seen_BT = ids_BT if context is None else ids_BT[:, -context:]
        next_B = sampling.choose(model(seen_BT)[:, -1], generator)
        if stop is not None:
            next_B = next_B.masked_fill(ended_B, stop)
            ended_B |= next_B == stop
        ids_BT = torch.cat([ids_BT, next_B.unsqueeze(1)], 1)
        if stop is not None and bool(ended_B.all()):
            break
    return ids_BT
