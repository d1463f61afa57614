"""Generation on several ranks: prompts shared out, results everywhere and in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.inference.caches import Caching
from gradwire.inference.completion import Completion, Finish
from gradwire.inference.generate import generate, rows_of
from gradwire.inference.run import Lockstep, Model
from gradwire.inference.sampling import Sampling, seeds_of
from gradwire.inference.steps import Prompts
from gradwire.inference.stopping import Stop

_FINISHES: tuple[Finish, ...] = ("length", "stop")


@dataclass(frozen=True)
class Shares:
    """Which part of the work is this rank's. Ranks that compute one model together have the same share.

    Args:
        share: This rank's, counted from 0.
        shares: How many there are.
        gather: Every share's small CPU tensor, in order, on every rank; of the same shape everywhere. A collective.
        lockstep: Whether every rank must call the model equally often, as where each holds a part of the weights.
    """

    share: int
    shares: int
    gather: Callable[[Tensor], Sequence[Tensor]]
    lockstep: bool = True


def generate_shared(
    model: Model,
    prompts: Tensor | Prompts,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    *,
    shares: Shares,
    samples: int = 1,
    seed: int | Sequence[int] = 0,
    stop: Stop | None = None,
    caching: Caching | None = None,
) -> list[Completion]:
    """As `generate`, with every share continuing some of the prompts; all completions, in order, on every rank.

    What a sequence draws depends neither on the number of shares nor on who continues it. A collective.

    Raises:
        InferenceError: as of `generate`, on every rank.
    """
    rows = rows_of(prompts)
    seeds = seeds_of(seed, len(rows) * samples)
    mine = list(range(shares.share, len(rows), shares.shares))
    most = -(-len(rows) // shares.shares)
    # A share with fewer prompts repeats one where all must go along; nobody looks at what comes of it.
    worked = mine + [0] * (most - len(mine)) if shares.lockstep else mine
    found = (
        generate(
            model,
            [rows[index] for index in worked],
            max_new_tokens,
            sampling,
            samples=samples,
            seed=[seeds[index * samples + sample] for index in worked for sample in range(samples)],
            stop=stop,
            caching=caching,
            lockstep=Lockstep(max(map(len, rows)), _going(shares)) if shares.lockstep else None,
        )
        if worked
        else []
    )
    table = torch.zeros(most * samples, 2 + 2 * max_new_tokens, dtype=torch.float64)
    for row, each in zip(table, found, strict=False):
        row.copy_(_written(each, max_new_tokens))
    by_share = [list(each) for each in shares.gather(table)]
    return [
        _read(index, by_share[index % shares.shares][index // shares.shares * samples + sample], max_new_tokens)
        for index in range(len(rows))
        for sample in range(samples)
    ]


def _going(shares: Shares) -> Callable[[bool], bool]:
    """Whether any share has sequences that go on."""
    return lambda going: any(bool(each.item()) for each in shares.gather(torch.tensor([int(going)])))


def _written(found: Completion, most: int) -> Tensor:
    """A completion as numbers: how it ends, how long it is, tokens (exact below 2⁵³) and their log-probabilities."""
    row = torch.zeros(2 + 2 * most, dtype=torch.float64)
    count = len(found.tokens)
    row[0], row[1] = _FINISHES.index(found.finish), count
    row[2 : 2 + count] = torch.tensor(found.tokens, dtype=torch.float64)
    row[2 + most : 2 + most + count] = torch.tensor(found.logprobs, dtype=torch.float64)
    return row


def _read(prompt: int, row: Tensor, most: int) -> Completion:
    count = int(row[1])
    tokens = tuple(int(token) for token in row[2 : 2 + count].tolist())
    return Completion(prompt, tokens, tuple(row[2 + most : 2 + most + count].tolist()), _FINISHES[int(row[0])])
