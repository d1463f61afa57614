"""Continuous batching: sequences join and leave a running batch at any token (Yu 2022, Orca; Kwon 2023, 2309.06180).

Shapes: B sequences, T tokens, V vocabulary.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from gradwire.inference.caches import Packed, Paged, Pool, PoolFullError
from gradwire.inference.caches.pool import contents
from gradwire.inference.completion import Completion, Token, completion
from gradwire.inference.errors import CacheFullError, InferenceError
from gradwire.inference.model import CachedModel
from gradwire.inference.request import Request, RequestState
from gradwire.inference.sampling import Sampling, uniform
from gradwire.inference.steps import evaluating, without_gradients


class Engine:
    """Serves requests from one pool, as many at a time as fit.

    Requests wait in order until their prompt fits. Prompts with equal beginnings share blocks. Where the pool is full
    the sequence that came last gives its blocks back and waits; it is computed again later, and goes on with the same
    tokens, since what it draws depends on its seed and positions alone.

    Args:
        model: Its layout is the pool's.
        pool: Its size is the memory limit.
        most: Sequences that run at a time, at most.
        prefill: Tokens of prompts that join in one step, at most, but for the first prompt.

    Attributes:
        preemptions: Sequences that gave their blocks back.
    """

    def __init__(self, model: CachedModel, pool: Pool, *, most: int = 64, prefill: int = 2048) -> None:
        if most < 1 or prefill < 1:
            raise InferenceError(f"most and prefill must be at least 1, found {most} and {prefill}")
        self._model, self._pool, self._most, self._prefill = model, pool, most, prefill
        self._waiting: deque[RequestState] = deque()
        self._running: list[RequestState] = []
        self._submitted = 0
        self._holding = False  # after a preemption nobody joins until somebody leaves
        self.preemptions = 0

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for blocks."""
        return len(self._waiting)

    def submit(self, request: Request) -> int:
        """Take on a request; its number, by which its tokens are known.

        Raises:
            CacheFullError: the pool, or the model's context, could never hold it.
        """
        tokens = len(request.prompt) + request.max_new_tokens - 1
        context = self._pool.layout.context
        if self._pool.needed(tokens) > self._pool.blocks or (context is not None and tokens > context):
            raise CacheFullError(
                f"a request of {tokens} tokens, where the pool holds {self._pool.blocks * self._pool.block} and the "
                f"model knows {context or 'all'} positions"
            )
        self._waiting.append(RequestState(self._submitted, request, self._pool))
        self._submitted += 1
        return self._submitted - 1

    def cancel(self, number: int) -> None:
        """Drop a request; unknown and finished ones are none."""
        for sequence in [each for each in self._running if each.number == number]:
            self._leave(sequence)
        self._waiting = deque(each for each in self._waiting if each.number != number)

    def run(self, requests: Iterable[Request]) -> list[Completion]:
        """Serve requests to their end; what was added to each, in order. Those submitted before are served too."""
        numbers = {self.submit(request): index for index, request in enumerate(requests)}
        tokens: list[list[Token]] = [[] for _ in numbers]
        for token in self.stream():
            if token.sequence in numbers:
                tokens[numbers[token.sequence]].append(token)
        return [completion(index, each) for index, each in enumerate(tokens)]

    def stream(self) -> Iterator[Token]:
        """Tokens as they come, until nothing is left to serve; requests may be submitted in between."""
        while self._running or self._waiting:
            yield from self.step()

    def step(self) -> list[Token]:
        """Let requests join, and give every running sequence its next token, in one call of the model."""
        with without_gradients(self._pool.layout):
            return self._step()

    def _step(self) -> list[Token]:
        joining = [] if self._holding else self._admit()
        if not self._running and self._waiting:  # the pool has other users, who hold too much
            raise PoolFullError(f"the next request does not fit into the {self._pool.free} blocks that are free")
        self._make_room()
        sequences = list(self._running)
        if not sequences:
            return []
        with evaluating(self._model):
            logits_BV = self._compute(sequences)
        for sequence in joining:
            if sequence in sequences:
                sequence.table.publish(sequence.ids)
        return self._choose(sequences, logits_BV)

    def _admit(self) -> list[RequestState]:
        """Those at the head of the queue that fit; of equal beginnings one, so that the next finds its blocks."""
        joining: list[RequestState] = []
        begun: set[Hashable] = set()
        free, budget = self._pool.free, self._prefill
        while self._waiting and len(self._running) < self._most:
            sequence = self._waiting[0]
            sequence.table.adopt(sequence.ids, len(sequence.ids) - 1)
            first_own = next(islice(contents(sequence.ids, self._pool.block), len(sequence.table.blocks), None), None)
            needed, count = sequence.needed, len(sequence.to_compute)
            if needed > free or first_own in begun or (joining and count > budget):
                sequence.table.release()
                break
            free, budget = free - needed, budget - count
            begun |= set() if first_own is None else {first_own}
            joining.append(self._waiting.popleft())
            self._running.append(sequence)
        return joining

    def _make_room(self) -> None:
        """Where blocks are missing for the next tokens, those that came last give theirs back and wait."""
        while (needed := sum(sequence.needed for sequence in self._running)) > self._pool.free:
            if len(self._running) == 1:  # the pool has other users, who hold too much
                raise PoolFullError(
                    f"{needed} blocks are needed, and {self._pool.free} of {self._pool.blocks} are free"
                )
            last = self._running.pop()
            last.table.release()
            self._waiting.appendleft(last)
            self._holding = True
            self.preemptions += 1

    def _compute(self, sequences: Sequence[RequestState]) -> Tensor:
        """Logits [B, V] after the tokens that are not stored yet."""
        order = sorted(range(len(sequences)), key=lambda row: len(sequences[row].to_compute))
        ordered = [sequences[row] for row in order]
        if self._pool.layout.packed:
            logits_BV = self._packed(ordered)
        else:
            logits_BV = torch.cat([self._padded(group) for group in _of_similar_length(ordered)])
        return logits_BV[torch.tensor(order, device=logits_BV.device).argsort()]

    def _packed(self, sequences: Sequence[RequestState]) -> Tensor:
        new = [each.to_compute for each in sequences]
        cache = Packed(self._pool, [each.table for each in sequences], [len(ids) for ids in new])
        ids_1N = torch.tensor([[token for ids in new for token in ids]], device=self._pool.layout.device)
        return self._model(ids_1N, cache=cache)[0]

    def _padded(self, sequences: Sequence[RequestState]) -> Tensor:
        new = [each.to_compute for each in sequences]
        longest = max(map(len, new))
        cache = Paged(self._pool, [each.table for each in sequences])
        cache.pad(torch.tensor([longest - len(ids) for ids in new]))
        ids_BT = torch.tensor([[0] * (longest - len(ids)) + ids for ids in new], device=self._pool.layout.device)
        return self._model(ids_BT, cache=cache)[:, -1]

    def _choose(self, sequences: Sequence[RequestState], logits_BV: Tensor) -> list[Token]:
        ids = torch.zeros(len(sequences), dtype=torch.int64, device=logits_BV.device)
        by_sampling: dict[Sampling, list[int]] = {}
        for row, sequence in enumerate(sequences):
            by_sampling.setdefault(sequence.request.sampling, []).append(row)
        for sampling, rows in by_sampling.items():
            members = [sequences[row] for row in rows]
            drawn = torch.tensor(
                [uniform(each.request.seed, len(each.ids)) for each in members],
                dtype=torch.float64,
                device=logits_BV.device,
            )
            logits = logits_BV if len(rows) == len(sequences) else logits_BV[rows]
            ids[rows] = sampling.choose(logits, drawn, _seen(sampling, members, logits))
        logprobs_B = logits_BV.float().log_softmax(-1).gather(1, ids[:, None])[:, 0]
        return [
            self._add(sequence, token, logprob)
            for sequence, token, logprob in zip(sequences, ids.tolist(), logprobs_B.tolist(), strict=True)
        ]

    def _add(self, sequence: RequestState, token: int, logprob: float) -> Token:
        finish = sequence.add(token)
        if finish is not None:
            self._leave(sequence)
        return Token(sequence.number, token, logprob, finish)

    def _leave(self, sequence: RequestState) -> None:
        sequence.table.release()
        self._running.remove(sequence)
        self._holding = False


def _of_similar_length(sequences: Sequence[RequestState]) -> list[list[RequestState]]:
    """Of sequences in order of what they have to compute, groups in which the longest has at most twice as much as the
    shortest: little of it is padding."""
    groups: list[list[RequestState]] = []
    for sequence in sequences:
        if groups and len(sequence.to_compute) <= 2 * len(groups[-1][0].to_compute):
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups


def _seen(sampling: Sampling, sequences: Sequence[RequestState], logits_BV: Tensor) -> Tensor | None:
    if sampling.repetition_penalty == 1.0:
        return None
    seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
    for seen_V, sequence in zip(seen_BV, sequences, strict=True):
        seen_V[torch.tensor(sequence.ids, device=seen_V.device)] = True
    return seen_BV
