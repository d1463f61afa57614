"""Text that is sampled while a run trains changes nothing about the run."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.comm import AllReduce
from gradwire.inference import Cache, Caching, generate
from gradwire.schedulers import Duration, Plan
from gradwire.trainer import Run, Settings, Trainer
from gradwire.trainer.assemble import scoring_of
from gradwire.trainer.blocks import checkpoint_activations, compile_blocks, eagerly
from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.models import Decoder, HFCausalLM
from gradwire.trainer.rollouts import Rollouts
from gradwire.trainer.strategies import DataParallel, FullySharded, Single, Strategy
from gradwire.trainer.strategies.sharding import local
from gradwire.trainer.writing import Scoring, TextSamples, Writing


class Bytes(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Windows of pseudo-random bytes."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(17).mul(index + 3).remainder(50)
        return {"input_ids": ids[:-1], "labels": ids[1:]}


class Source:
    """The same windows to train on and to evaluate on."""

    context = 16

    def __init__(self) -> None:
        self.train = self.validation = Bytes()


def writing(length: int = 12, context: int = 16) -> Writing:
    return Writing(
        encode=lambda text: list(text.encode()),
        decode=lambda ids: "".join(f" {token}" for token in ids),
        context=context,
        seed=5,
        length=length,
        temperature=1.0,
    )


def samples(count: int, length: int = 12) -> TextSamples:
    return TextSamples(writing(length), "\x01\x02\x03", count)


class Judge:
    """Likes small tokens."""

    prompts = ("\x01", "\x02\x03\x04", "\x05")

    def score(self, prompt: str, text: str) -> float:
        return -float(sum(map(int, text.split()))) / len(prompt)


def decoder() -> Decoder:
    torch.manual_seed(1)
    return Decoder(50, context=16, width=16, layers=2, heads=2, kv_heads=2, dropout=0.1)


def trained(
    text: TextSamples | None, strategy: Strategy | None = None, scoring: Scoring | None = None, **more: Any
) -> Trainer:
    model = decoder()
    trainer = Trainer(
        model,
        Source(),
        lambda prepared: torch.optim.AdamW(prepared.parameters(), 1e-2),
        Plan(lr=1e-2, batch=8, run_length="6 updates", context=16),
        settings=Settings(evaluate_every=Duration.parse("2 updates"), evaluation_limit=8),
        writing=writing(),
        samples=text,
        scoring=scoring,
        strategy=strategy,
        **more,
    )
    trainer.fit()
    return trainer


def states(trainer: Trainer) -> list[torch.Tensor]:
    moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
    return [local(each) for each in (*trainer.model.state_dict().values(), *moments)]


def assert_same_bits(one: Trainer, other: Trainer) -> None:
    assert len(states(one)) == len(states(other)) > 20
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(states(one), states(other), strict=True))


def with_all(strategy: Strategy | None, folder: Path | None = None) -> Trainer:
    """A run that samples, scores and rolls out, all more than once."""
    rollouts = Rollouts(["\x07", "\x01\x02"], every="2 updates", samples=2, length=5)
    run = Run("run", folder)
    return trained(samples(3), strategy, Scoring(writing(6), Judge()), callbacks={"rollouts": rollouts}, run=run)


def test_a_run_that_writes_text_ends_in_the_same_bits(tmp_path: Path) -> None:
    with_text = with_all(None, tmp_path)
    after = torch.random.get_rng_state()
    without = trained(None)
    assert torch.equal(torch.random.get_rng_state(), after)
    assert_same_bits(with_text, without)
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [2] * 4 + [4] * 4 + [6] * 4
    assert [line["prompt"] for line in lines[:4]] == ["\x07", "\x07", "\x01\x02", "\x01\x02"]
    assert all(len(line["tokens"]) == len(line["logprobs"]) == 5 for line in lines)
    assert with_text.evaluate()["eval/score"] < 0


def _on_ranks(rank: int, kind: str) -> None:
    device = torch.device("cpu")
    with_text = with_all(_strategy(kind, device))
    without = trained(None, _strategy(kind, device))
    assert_same_bits(with_text, without)
    found = with_text.evaluate()
    if kind == "ddp":
        alone, update = Single(device), with_text.clock.updates
        assert found["eval/sample"] == "\n\n".join(samples(3).draw(with_text.model, alone, update))
        score = Scoring(writing(6), Judge()).measure(with_text.model, alone, update)["eval/score"]
        assert found["eval/score"] == pytest.approx(score, rel=1e-6)


def _strategy(kind: str, device: torch.device) -> Strategy:
    if kind == "ddp":
        return DataParallel(AllReduce(), device)
    return FullySharded(AllReduce(), device, tensor=2 if kind == "tensor" else 1)


def test_ranks_that_write_text_end_in_the_same_bits_and_write_what_one_does(ranks: Callable[..., None]) -> None:
    ranks(2, _on_ranks, "ddp")


@pytest.mark.parametrize("kind", ["sharded", "tensor"])
def test_ranks_that_hold_parts_of_the_model_write_text_together(ranks: Callable[..., None], kind: str) -> None:
    ranks(2, _on_ranks, kind)


def caches() -> list[Cache]:
    """All that there are in this process."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Cache)]


def test_no_cache_stays_when_the_text_is_there() -> None:
    before = caches()  # of other tests, which what they have compiled may hold
    text = samples(2)
    text.draw(decoder().eval(), Single(), 1)
    assert [each for each in caches() if all(each is not other for other in before)] == []


def test_text_past_the_context_goes_on_in_a_window() -> None:
    drawn = samples(2, length=40).draw(decoder().eval(), Single(), 1)
    assert [len(text.split()) for text in drawn] == [41, 41]
    assert drawn == samples(2, length=40).draw(decoder().eval(), Single(), 1)
    assert drawn != samples(2, length=40).draw(decoder().eval(), Single(), 2)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "mistral"])
def test_models_of_transformers_are_sampled_past_their_context_with_a_window_or_anew(model_type: str) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    config: dict[str, Any] = sizes | {"max_position_embeddings": 16}
    if model_type != "gpt2":
        config |= {"intermediate_size": 16, "num_key_value_heads": 1}
    if model_type == "mistral":
        config |= {"sliding_window": 8}
    model = HFCausalLM(model_type, config).eval()
    drawn = samples(1, length=30).draw(model, Single(), 1)
    assert len(drawn[0].split()) == 31


@pytest.mark.parametrize("change", [checkpoint_activations, compile_blocks])
def test_blocks_that_were_changed_for_training_generate_the_same(change: Callable[[nn.Module], None]) -> None:
    model = decoder().eval()
    expected = generate(model, [[1, 2, 3]], 9, caching=Caching(kind="none"))
    change(model)
    with eagerly(model):
        found = generate(model, [[1, 2, 3]], 9)
    assert [each.tokens for each in found] == [each.tokens for each in expected]


def test_a_scorer_and_rollouts_are_named_in_the_configuration() -> None:
    judge = f"{__name__}.Judge"
    overrides = [
        f"+evaluation.scorer._target_={judge}",
        f"allow_targets=[{__name__.split('.')[0]}]",
        "+callbacks.rollouts._target_=gradwire.trainer.rollouts.Rollouts",
        "+callbacks.rollouts.prompts=[a,b]",
        "launch.device=cpu",
    ]
    valid = validate(compose(overrides, None))
    made = scoring_of(valid.config, writing(), valid.allow_targets)
    assert made is not None
    assert type(made.scorer).__name__ == "Judge"
    with pytest.raises(StateMismatchError, match="needs data that turns text into tokens"):
        scoring_of(valid.config, None, valid.allow_targets)
    with pytest.raises(ConfigError, match="lenght"):
        validate(compose([*overrides, "+callbacks.rollouts.lenght=3"], None))


def test_a_scorer_without_prompts_is_told() -> None:
    class Silent(Judge):
        prompts = ()

    with pytest.raises(StateMismatchError, match="Silent gives no prompts"):
        Scoring(writing(), Silent()).measure(decoder(), Single(), 1)
