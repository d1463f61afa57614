"""One generation, from the prompts' first logits to the last token.

Shapes: B sequences, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.inference.caches import Caching
from gradwire.inference.completion import Finish, Token
from gradwire.inference.errors import CacheFullError
from gradwire.inference.model import CachedModel
from gradwire.inference.sampling import Sampling, uniform
from gradwire.inference.steps import Cached, Prompts, Steps, Uncached, evaluating, without_gradients
from gradwire.inference.stopping import Stop

Model = CachedModel | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Lockstep:
    """What ranks that must call the model equally often agree on.

    Args:
        longest: Tokens of the longest prompt of any rank.
        going: Told after each token whether this rank has sequences that go on; says whether any rank has.
    """

    longest: int
    going: Callable[[bool], bool]


class Run:
    """One generation: what is asked for, and where each sequence stands.

    Args:
        model: What computes the logits.
        prompts: Token ids.
        samples: Continuations of each.
        new: Most tokens to add.
        sampling: How they are chosen.
        seeds: One for each sequence.
        stop: What ends a sequence early.
        caching: Which cache is used.
        lockstep: For ranks that must call the model equally often.
        agree: Gives the chosen tokens [B] of one of the ranks that compute the model together.
    """

    def __init__(
        self,
        model: Model,
        prompts: Prompts,
        samples: int,
        new: int,
        sampling: Sampling,
        seeds: Sequence[int],
        stop: Stop,
        caching: Caching,
        lockstep: Lockstep | None,
        agree: Callable[[Tensor], Tensor],
    ) -> None:
        self._model, self._caching, self._lockstep, self._agree = model, caching, lockstep, agree
        self._prompts, self._samples, self._new = prompts, samples, new
        self._sampling, self._seeds, self._stop = sampling, seeds, stop
        self._starts = [len(prompt) for prompt in prompts for _ in range(samples)]
        self._last: list[deque[int]] = [deque(maxlen=stop.span) for _ in self._starts]
        self._going = set(range(len(self._starts)))
        self._seen_BV: Tensor | None = None

    def stream(self) -> Iterator[Token]:
        """The tokens; see `stream_tokens`."""
        if not self._new:
            return iter(())
        model = self._model
        layout = model.kv_layout() if isinstance(model, CachedModel) and self._caching.kind != "none" else None
        stream: Iterator[Token] = without_gradients(layout)(self._stream)()
        return stream

    def _stream(self) -> Iterator[Token]:
        with evaluating(self._model):
            steps = self._steps()
            going = bool if self._lockstep is None else self._lockstep.going
            logits_BV = steps.first(self._prompts)
            if self._samples > 1:
                steps.repeat(self._samples)
                logits_BV = logits_BV.repeat_interleave(self._samples, 0)
            for step in range(self._new):
                ids_B, logprobs = self._choose(logits_BV, step)
                yield from self._tokens(ids_B.tolist(), logprobs, step)
                if step + 1 == self._new or not going(bool(self._going)):
                    return
                logits_BV = steps.next(ids_B)

    def _steps(self) -> Steps:
        model, caching = self._model, self._caching
        longest = max(self._starts) if self._lockstep is None else self._lockstep.longest
        most = longest + self._new - 1  # the last token is not computed with
        if isinstance(model, CachedModel) and caching.kind != "none":
            return Cached(model, caching.make(model.kv_layout(), len(self._starts), most), longest)
        length = caching.length or (model.kv_layout().context if isinstance(model, CachedModel) else None)
        if length is not None and most > length and caching.limit == "error":
            raise CacheFullError(
                f"sequences of {most} tokens, where the model sees {length}: shorten them, or window them"
            )
        plain: Any = model  # without a cache it is a function
        return Uncached(plain, _device_of(model), length, apart=self._lockstep is not None)

    def _choose(self, logits_BV: Tensor, step: int) -> tuple[Tensor, list[float]]:
        uniform_B = None
        if not self._sampling.greedy:
            drawn = [uniform(seed, start + step) for seed, start in zip(self._seeds, self._starts, strict=True)]
            uniform_B = torch.tensor(drawn, dtype=torch.float64, device=logits_BV.device)
        ids_B = self._agree(self._sampling.choose(logits_BV, uniform_B, self._seen(logits_BV)))
        if self._seen_BV is not None:
            self._seen_BV.scatter_(1, ids_B[:, None], True)
        logprobs_B = logits_BV.float().log_softmax(-1).gather(1, ids_B[:, None])[:, 0]
        return ids_B, logprobs_B.tolist()

    def _seen(self, logits_BV: Tensor) -> Tensor | None:
        if self._sampling.repetition_penalty != 1.0 and self._seen_BV is None:
            self._seen_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
            for row, seen_V in enumerate(self._seen_BV):
                seen_V[torch.tensor(self._prompts[row // self._samples], device=seen_V.device)] = True
        return self._seen_BV

    def _tokens(self, ids: list[int], logprobs: list[float], step: int) -> Iterator[Token]:
        for sequence in sorted(self._going):
            self._last[sequence].append(ids[sequence])
            finish: Finish | None = "length" if step + 1 == self._new else None
            if self._stop.ends(tuple(self._last[sequence])):
                finish = "stop"
            if finish is not None:
                self._going.remove(sequence)
            yield Token(sequence, ids[sequence], logprobs[sequence], finish)


def _device_of(model: object) -> torch.device:
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device
