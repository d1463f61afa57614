"""Mistakes planted in the real configuration: one clear message each before a worker starts, and the cure of a typo."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradwire.trainer.config import ConfigError, Mistake, compose, load_resolved, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.config.values import Fault
from tests.trainer.commands import gradwire


@dataclass(frozen=True)
class Planted:
    """A mistake and what must be said about it.

    Args:
        overrides: On the command line, with ` & ` between them.
        key: The key that the message names.
        says: Part of the message.
        suggestion: The cure, for a typo.
        file: A file of the user's folder by name; its text.
        line: The line of that file at which the mistake is.
    """

    overrides: str
    key: str
    says: str
    suggestion: str | None = None
    file: tuple[str, str] | None = field(default=None)
    line: int = 0


def mine(*lines: str) -> tuple[str, str]:
    """An experiment of the user's."""
    return "experiment/mine.yaml", "\n".join(["# @package _global_", *lines]) + "\n"


UNKNOWN = "no such key"
TYPOS = [
    Planted("data.contxt=64", "data.contxt", UNKNOWN, "data.context"),
    Planted("dat.context=64", "dat.context", UNKNOWN, "data.context"),
    Planted("optimizr.lr=1e-3", "optimizr.lr", UNKNOWN, "optimizer.lr"),
    Planted("optimizer.wieght_decay=0", "optimizer.wieght_decay", UNKNOWN, "optimizer.weight_decay"),
    Planted("+model.layer=4", "model.layer", UNKNOWN, "model.layers"),
    Planted("++model.kv_head=3", "model.kv_head", UNKNOWN, "model.kv_heads"),
    Planted("batch.sise=64", "batch.sise", UNKNOWN, "batch.size"),
    Planted("batch_size=64", "batch_size", UNKNOWN, "batch.size"),
    Planted("learning_rate=1e-3", "learning_rate", UNKNOWN, "optimizer.lr"),
    Planted("run.lenght=200 updates", "run.lenght", UNKNOWN, "run.length"),
    Planted("run.sed=1", "run.sed", UNKNOWN, "run.seed"),
    Planted("context=64", "context", UNKNOWN, "data.context"),
    Planted("lr.warmpu=5%", "lr.warmpu", UNKNOWN, "lr.warmup"),
    Planted("batch.schedule.lenght=5%", "batch.schedule.lenght", UNKNOWN, "batch.schedule.length"),
    Planted("launch.proceses=2", "launch.proceses", UNKNOWN, "launch.processes"),
    Planted("checkpoint.kep=3", "checkpoint.kep", UNKNOWN, "checkpoint.keep"),
    Planted("evalution.every=5 updates", "evalution.every", UNKNOWN, "evaluation.every"),
    Planted("compille=true", "compille", UNKNOWN, "compile"),
    Planted("optimizer.groups=[{patern: '*'}]", "optimizer.groups[0].patern", UNKNOWN, "optimizer.groups[0].pattern"),
    Planted("~model.layrs", "model.layrs", "no such key to delete", "~model.layers"),
    Planted("modle=decoder_10m", "modle", UNKNOWN, "model"),
    Planted("model=decoder_10", "model", "there is no model called decoder_10", "model=decoder_10m"),
    Planted("data=pyton_source", "data", "there is no data called pyton_source", "data=python_source"),
    Planted("optimizer=adam", "optimizer", "there is no optimizer called adam", "optimizer=adamw"),
    Planted("lr=3e-4", "lr", "chooses one of", "optimizer.lr=0.0003"),
    Planted("batch=64", "batch", "chooses one of", "batch.size=64"),
    Planted("precision=bf61", "precision", "expected one of fp32, bf16, fp16", "bf16"),
    Planted("non_finite=rase", "non_finite", "expected one of raise, skip", "raise"),
    Planted("batch.micro=atuo", "batch.micro", "expected an integer or auto", "auto"),
    Planted("compile=ture", "compile", "expected true or false", "true"),
    Planted("data.context='${model.widht}'", "data.context", "leads nowhere", "${model.width}"),
    Planted("model._target_=torch.nn.Linar", "model._target_", "no class Linar", "torch.nn.Linear"),
    Planted("optimizer._target_=torch.optm.AdamW", "optimizer._target_", "lies outside", "torch.optim.AdamW"),
    Planted(
        "lr._target_=gradwire.schedulers.lr.WarmupCosin",
        "lr._target_",
        "no class WarmupCosin",
        "gradwire.schedulers.lr.WarmupCosine",
    ),
    Planted("experiment=mine", "runn", UNKNOWN, "run", mine("runn:", "  name: x"), 2),
    Planted("experiment=mine", "run.nam", UNKNOWN, "run.name", mine("run:", "  nam: x"), 3),
    Planted("experiment=mine", "model.widht", UNKNOWN, "model.width", mine("model:", "", "  widht: 64"), 4),
    Planted(
        "experiment=mine", "model", "no model/convnt", "convnet", mine("defaults:", "  - override /model: convnt"), 3
    ),
    Planted(
        "experiment=mine", "modle", "no defaults list", "model", mine("defaults:", "  - override /modle: convnet"), 3
    ),
]
WRONG_VALUES = [
    Planted("data.context=many", "data.context", "expected an integer, found the text 'many'"),
    Planted("data.workers=true", "data.workers", "expected an integer, found true"),
    Planted("batch.size=0.5", "batch.size", "expected an integer, found 0.5"),
    Planted("batch.size=0", "batch.size", "must be at least 1"),
    Planted("clip=-1", "clip", "must be more than 0"),
    Planted("launch.hosts=0", "launch.hosts", "must be at least 1"),
    Planted("launch.hosts=2:1", "launch.hosts", "MIN must not be above MAX, found 2:1: write 1:2"),
    Planted("launch.hosts=0:2", "launch.hosts", "MIN must be at least 1"),
    Planted("launch.hosts=x", "launch.hosts", "a number of hosts, or MIN:MAX such as 1:4, found 'x'"),
    Planted("ema=1", "ema", "less than 1"),
    Planted("optimizer.betas=[0.9]", "optimizer.betas", "expected a list of 2 values"),
    Planted("optimizer.betas=[0.9,high]", "optimizer.betas[1]", "expected a number"),
    Planted("comm.topology={local: two}", "comm.topology.local", "expected an integer"),
    Planted("run.name=null", "run.name", "expected text, found null"),
    Planted("run=fast", "run", "expected a section of keys"),
    Planted("data=text", "data.paths", "has no value yet"),
    Planted("~run.length", "run.length", "is missing"),
    Planted("run.length=200", "run.length", "'200 updates'"),
    Planted("run.length=200 steps", "run.length", "did you mean '200 updates'?"),
    Planted("run.length=10 minutes", "run.length", "found minutes"),
    Planted("run.max_time=10 updates", "run.max_time", "must be wall-clock time"),
    Planted("run.stop_at=1 minute", "run.stop_at", "found minutes"),
    Planted("lr.warmup=0.1", "lr.warmup", "is not a duration"),
    Planted("optimizer.lr=-1", "optimizer.lr", "Invalid learning rate"),
    Planted("data.context", "", "expected KEY=VALUE"),
    Planted("run.name=[a", "", "cannot be read"),
    Planted("optimizer.lr=1e-3,1e-4", "optimizer.lr", "only a sweep takes"),
    Planted("hydra.run.dir=x", "hydra.run.dir", "no effect"),
    Planted("experiment=mine", "", "not valid YAML", None, mine("run: {name: x", "clip: 1"), 3),
]
TARGETS = [
    Planted(f"{section}._target_={target}", f"{section}._target_", says)
    for section, target, says in [
        ("model", "torch.os.system", "lies outside"),
        ("model", "torch.hub.load", "lies outside"),
        ("data", "os.system", "lies outside"),
        ("loss", "builtins.eval", "lies outside"),
        ("data", "torch.nn.modules.module.torch.hub.load", "there is no module"),
        ("data", "gradwire.trainer.cli.subprocess.Popen", "there is no module"),
        ("data", "gradwire.trainer.config.sources.Path", "really pathlib.Path"),
        ("model", "torch.optim.AdamW", "is not a Module"),
        ("optimizer", "torch.nn.Linear", "is not a Optimizer"),
        ("model", "torch.nn.Sequential", "without names"),
    ]
]
CONTRADICTIONS = [
    Planted("model=convnet", "data._target_", "gives token ids"),
    Planted("lr.warmup=5000 updates", "lr.warmup", "5000 updates"),
    Planted("comm.topology={local: 4, node: 2}", "comm.topology", "8 ranks and the run has 2"),
    Planted("strategy=single", "strategy", "one process"),
    Planted("launch.device=cuda", "launch.device", "no usable GPU"),
    Planted("launch=hosts", "launch.endpoint", "is missing"),
    Planted("launch.hosts=2", "launch.endpoint", "is missing"),
    Planted("launch.hosts=1:2", "launch.endpoint", "is missing"),
    Planted(
        "launch.hosts=1:2 & launch.endpoint=a:1 & comm.topology={local: 2, node: 1}",
        "comm.topology",
        "a fixed number of ranks, and with launch.hosts=1:2 that changes",
        "comm.topology=detect",
    ),
    Planted("batch.granule=5", "batch.size", "no multiple of batch.granule", "batch.size=15"),
    Planted("batch.micro=4096", "batch.micro", "larger than the whole batch"),
    Planted("model.heads=7", "model.heads", "heads must divide width"),
    Planted("model.context=64", "data.context", "raise model.context to 128"),
    Planted("model.vocabulary=100", "model.vocabulary", "raise model.vocabulary to 256"),
    Planted("data=digits", "data._target_", "Decoder is trained by next_token and Digits gives images"),
    Planted("data=text & data.paths=[nowhere/*.txt]", "data", "nowhere"),
]
PLANTED = TYPOS + WRONG_VALUES + TARGETS + CONTRADICTIONS


def on_two_cores(config: Any, allow: tuple[str, ...]) -> list[Fault]:
    return contradictions(config, allow, Machine(gpus=0, processes=2, world_size=2))


def mistakes_of(overrides: Sequence[str], folder: Path) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        validate(compose(overrides, folder), on_two_cores)
    return list(caught.value.mistakes)


def test_there_are_enough() -> None:
    assert len(PLANTED) >= 50


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.overrides}-{planted.key}")
def test_a_planted_mistake_is_one_clear_error(planted: Planted, tmp_path: Path) -> None:
    if planted.file:
        path = tmp_path / planted.file[0]
        path.parent.mkdir()
        path.write_text(planted.file[1])
    mistakes = mistakes_of(planted.overrides.split(" & "), tmp_path)
    assert [mistake.key for mistake in mistakes if mistake.key != "optimizer.groups[0].pattern"] == [planted.key]
    mistake = next(mistake for mistake in mistakes if mistake.key == planted.key)
    assert planted.says in mistake.message
    assert mistake.suggestion == planted.suggestion
    if planted.file:
        assert mistake.where == f"{tmp_path}/{planted.file[0]}:{planted.line}"


def test_the_command_tells_all_mistakes_at_once_and_starts_nothing(tmp_path: Path) -> None:
    planted = [each for each in TYPOS + WRONG_VALUES if each.key and "mine" not in each.overrides][:40]
    done = gradwire("train", *(each.overrides for each in planted if " " not in each.overrides), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) > 20
    assert "data.contxt (override 'data.contxt=64'): no such key; did you mean data.context?" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["os.system", "torch.os.system", "torch.hub.load"])
def test_a_stored_configuration_cannot_allow_itself_a_target(tmp_path: Path, target: str) -> None:
    validate(compose(), on_two_cores).write(tmp_path / "config.yaml")
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    content["model"] = {"_target_": target, "command": "touch escaped"}
    content["allow_targets"] = ["os", "torch", target]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    done = gradwire("resume", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert f"model._target_ ({tmp_path}/config.yaml:" in done.stderr
    assert not (tmp_path / "escaped").exists()


def test_the_default_configuration_is_without_mistakes(tmp_path: Path) -> None:
    valid = validate(compose(), on_two_cores)
    valid.write(tmp_path / "config.yaml")
    assert validate(load_resolved(tmp_path / "config.yaml"), on_two_cores).config == valid.config


SOURCES = Sources()
OPTIONS = [f"{group}={option}" for group in SOURCES.groups() for option in SOURCES.options(group)]


# What an option needs beside it: a model for images, a context that a mixture does not name.
_WITH = {"data=digits": ["model=convnet"]}

# Keys that an option leaves to the user.
_REQUIRED = {
    "data.path",
    "data.paths",
    "data.sources.text.paths",
    "model.path",
    "batch.schedule.start",
    "scaling.reference",
    "comm.topology.x",
    "comm.topology.y",
}


_NESTED = re.compile("batch=base|comm/codec=")  # codecs stand on an axis: test_communication.py


@pytest.mark.parametrize("option", [option for option in OPTIONS if not _NESTED.match(option)])
def test_every_option_that_is_shipped_can_be_used(option: str) -> None:
    composed = compose([option, *_WITH.get(option, []), *(["sweep=default"] if option.startswith("sweep/") else [])])
    try:
        validate(composed, lambda config, allow: [])
    except ConfigError as error:
        missing = {mistake.key for mistake in error.mistakes if "has no value yet" in mistake.message}
        assert {mistake.key for mistake in error.mistakes} == missing, str(error)
        assert missing <= _REQUIRED
