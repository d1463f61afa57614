"""Text that a model writes while it trains: samples to look at, answers to score, rollouts.

Nothing of the training changes: random numbers are hashes of seed and position, the model goes back to the modes it was
in, no gradient is touched, and the cache is gone with the text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from gradwire.inference import (
    CachedModel,
    Caching,
    Sampling,
    Shares,
    UnsuitedModelError,
    generate_shared,
)
from gradwire.trainer.blocks import eagerly
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.randomness import derive_seed
from gradwire.trainer.strategies import Strategy


@dataclass(frozen=True)
class Text:
    """What a model wrote.

    Attributes:
        prompt: What it continued.
        text: What it added.
        tokens: Its ids.
        logprobs: Natural logarithms of their probabilities by the model itself.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Writing:
    """How text is written.

    Args:
        encode: Text to token ids.
        decode: Token ids to text.
        context: Most tokens that the model can see; past them it goes on in a window.
        seed: The run's seed.
        length: New tokens of each text.
        temperature: Sampling temperature; 0 takes the likeliest token.
    """

    encode: Callable[[str], Any]
    decode: Callable[[Any], str]
    context: int
    seed: int
    length: int = 200
    temperature: float = 0.8

    def write(
        self,
        model: nn.Module,
        strategy: Strategy,
        prompts: Sequence[str],
        *,
        samples: int = 1,
        purpose: str,
        update: int,
    ) -> list[Text]:
        """Continue prompts with the model as it is, shared out over the ranks; the same on every rank. A collective.

        Args:
            model: As the strategy prepared it.
            strategy: Who has which share.
            prompts: Text of at least a token each.
            samples: Continuations of each.
            purpose: Different purposes draw different numbers.
            update: So do different updates.
        """
        ids = [[int(token) for token in self.encode(prompt)] for prompt in prompts]
        with eagerly(model):
            found = generate_shared(
                model,
                ids,
                self.length,
                Sampling(self.temperature),
                shares=Shares(
                    strategy.data_rank, strategy.data_size, strategy.gather_shares, lockstep=not strategy.whole
                ),
                samples=samples,
                seed=derive_seed(self.seed, purpose, update),
                caching=self._caching(model, max(map(len, ids)) + self.length),
            )
        return [Text(prompts[each.prompt], self.decode(each.tokens), each.tokens, each.logprobs) for each in found]

    def _caching(self, model: nn.Module, tokens: int) -> Caching:
        """With a cache, which lets go of tokens past the context; models that cannot have one compute them again."""
        try:
            rotation = model.kv_layout().rotation if isinstance(model, CachedModel) else None
            cached = rotation is not None or tokens <= self.context
        except UnsuitedModelError:
            cached = False
        return Caching(kind="contiguous" if cached else "none", limit="window", length=self.context)


@dataclass(frozen=True)
class TextSamples:
    """Text to look at.

    Args:
        writing: How it is written.
        prompt: What is continued.
        count: Samples a time.
    """

    writing: Writing
    prompt: str
    count: int

    def draw(self, model: nn.Module, strategy: Strategy, update: int) -> list[str]:
        """Continue the prompt `count` times with the model as it is. A collective."""
        texts = self.writing.write(model, strategy, [self.prompt] * self.count, purpose="sample", update=update)
        return [self.prompt + each.text for each in texts]


class Scorer(Protocol):
    """Somebody's judgment of what a model writes: prompts, and a number for each continuation.

    A class in your own module, named by `evaluation.scorer._target_` and allowed by `allow_targets`.
    """

    @property
    def prompts(self) -> Sequence[str]:
        """What the model continues, at least one token each."""
        ...

    def score(self, prompt: str, text: str) -> float:
        """How good a continuation is; the mean over all becomes `eval/score`."""
        ...


@dataclass(frozen=True)
class Scoring:
    """Evaluation of what a model writes.

    Args:
        writing: How it is written.
        scorer: Gives the prompts and judges.
    """

    writing: Writing
    scorer: Scorer

    def measure(self, model: nn.Module, strategy: Strategy, update: int) -> Mapping[str, float]:
        """`eval/score`: the mean score of a continuation of each prompt; the same on every rank. A collective.

        Raises:
            StateMismatchError: the scorer gives no prompts.
        """
        prompts = list(self.scorer.prompts)
        if not prompts:
            raise StateMismatchError(f"evaluation.scorer: {type(self.scorer).__name__} gives no prompts")
        texts = self.writing.write(model, strategy, prompts, purpose="score", update=update)
        scores = [float(self.scorer.score(each.prompt, each.text)) for each in texts]
        return {"eval/score": sum(scores) / len(scores)}
