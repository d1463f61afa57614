"""`gradwire generate` on a small run."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gradwire.checkpoint import Checkpointer
from gradwire.inference import Caching, Sampling, generate
from gradwire.schedulers import Plan
from gradwire.trainer import Trainer, cli
from gradwire.trainer.assemble import build_model, component
from gradwire.trainer.checkpoint_reference import Reference
from gradwire.trainer.config import compose, load_resolved, validate
from gradwire.trainer.launch.run_directory import create
from gradwire.trainer.settings import Settings
from gradwire.trainer.text_model import TextModel
from tests.trainer.commands import gradwire

PROMPTS = ["the first ", "another, longer prompt "]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four updates with a moving average."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    overrides = [
        "data=text",
        f"data.paths=[{folder / 'text.txt'}]",
        "data.context=48",
        "model=decoder_1m",
        "model.width=32",
        "model.layers=1",
        "ema=0.5",
        "launch.device=cpu",
        f"run.dir={folder / 'run'}",
    ]
    config = validate(compose(overrides, None)).config
    made = create(config, overrides)
    model, data = build_model(config), component(config["data"], (), "workers")
    Trainer(
        model,
        data,
        torch.optim.AdamW(model.parameters(), 1e-2),
        Plan(lr=1e-2, batch=4, run_length="4 updates", context=48),
        settings=Settings(ema=0.5),
        checkpointer=Checkpointer(str(made / "checkpoints")),
    ).fit()
    return made


def loaded(run: Path) -> TextModel:
    valid = validate(load_resolved(run / "config.yaml", [], None))
    return TextModel.load(valid.config, (), Reference.parse(str(run)))


def texts(file: Path) -> list[str]:
    return [each["text"] for each in json.loads(file.read_text())["texts"]]


def test_one_prompt_is_continued_as_the_library_does(run: Path) -> None:
    done = gradwire("generate", str(run), "--prompt", PROMPTS[0], "--tokens", "20", "--temperature", "0")
    model = loaded(run)
    found = generate(model.model, [model.tokens_of(PROMPTS[0])], 20, Sampling(0.0), caching=Caching(kind="none"))[0]
    assert done.returncode == 0, done.stderr
    assert done.stdout == PROMPTS[0] + model.decode(found.tokens) + "\n"


def test_the_moving_average_is_what_writes(run: Path) -> None:
    state, _ = Checkpointer(str(run / "checkpoints")).restore("latest")
    own = loaded(run).model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in state.shared["average"].items())
    assert any(not torch.equal(own[name], tensor) for name, tensor in state.shared["model"].items())


def test_several_prompts_and_samples_come_in_order_with_all_that_is_known(run: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.json"
    prompts.write_text("\n".join([PROMPTS[0], "", PROMPTS[1]]) + "\n")
    done = gradwire("generate", str(run), "--file", str(prompts), "--samples", "2", "--tokens", "9", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("---")] == [
        f"--- prompt {prompt}, sample {sample} (length)" for prompt in (1, 2) for sample in (1, 2)
    ]
    record = json.loads(out.read_text())
    assert record["update"] == 4
    assert [each["prompt"] for each in record["texts"]] == [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    assert all(len(each["tokens"]) == len(each["logprobs"]) == 9 for each in record["texts"])
    assert all(logprob < 0 for each in record["texts"] for logprob in each["logprobs"])
    again = tmp_path / "again.json"
    alone = gradwire(
        "generate",
        str(run),
        "--file",
        str(prompts),
        "--samples",
        "2",
        "--tokens",
        "9",
        "--json",
        str(again),
        "--batch",
        "1",
    )
    assert alone.returncode == 0
    assert texts(again) == texts(out)  # what is drawn does not depend on what else is in the batch


@pytest.mark.parametrize(
    "options",
    [
        ["--cache", "paged"],
        ["--cache", "static"],
        ["--cache", "none"],
        ["--precision", "int8"],
        ["--top-k", "5", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.1"],
        ["--limit", "window", "--length", "20", "--kept", "2"],
    ],
)
def test_options_reach_the_library(run: Path, options: list[str]) -> None:
    done = gradwire("generate", str(run), "--prompt", PROMPTS[0], "--tokens", "25", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(PROMPTS[0])


def test_a_stop_string_is_not_shown(run: Path) -> None:
    model = loaded(run)
    found = generate(model.model, [model.tokens_of(PROMPTS[0])], 20, Sampling(0.0), caching=Caching(kind="none"))[0]
    text = model.decode(found.tokens)
    stop = text[7:9]
    done = gradwire(
        "generate", str(run), "--prompt", PROMPTS[0], "--tokens", "20", "--temperature", "0", "--stop", stop
    )
    assert done.returncode == 0
    assert done.stdout == PROMPTS[0] + text[: text.index(stop)] + "\n"


def test_lines_are_continued_as_they_are_typed(run: Path) -> None:
    result = CliRunner().invoke(
        cli.app, ["generate", str(run), "--tokens", "5", "--temperature", "0"], input="one \ntwo \n\nthree\n"
    )
    assert result.exit_code == 0
    assert [line[:4] for line in result.stdout.splitlines() if line[:4] in ("one ", "two ", "thre")] == ["one ", "two "]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--tokens", "100", "--prompt", "x"], 2, "make 100, but the model's context is 48"),
        (["--cache", "ring", "--prompt", "x"], 2, "cache must be one of contiguous, static, paged, none, found 'ring'"),
        (["--compile", "--prompt", "x"], 2, "--compile needs --cache static, found contiguous"),
        (["--top-p", "1.5", "--prompt", "x"], 2, r"top_p must lie in \(0, 1\], found 1.5"),
        (["--prompt", ""], 2, "a prompt needs at least one token"),
        (["--prompt", "x", "--file", "y"], 2, "give either --prompt or --file"),
        (["--file", "/nowhere"], 2, "No such file"),
        (["--prompt", "x", "--json", "/nowhere/out.json"], 2, "/nowhere"),
        (["--prompt", "x", "--tokens", "0"], 2, "--tokens"),
        (["model.width=64", "--prompt", "x"], 2, "the snapshot is of another model"),
        (["data=digits", "--prompt", "x"], 2, "Digits gives images"),
    ],
)
def test_mistakes_are_told(run: Path, options: list[str], code: int, message: str) -> None:
    done = gradwire("generate", str(run), *options)
    assert done.returncode == code, done.stderr
    assert re.search(message, done.stderr), done.stderr


def test_a_file_without_a_prompt_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(" \n\n")
    done = CliRunner().invoke(cli.app, ["generate", str(tmp_path / "no run"), "--file", str(prompts)])
    assert done.exit_code == 2
    assert "holds no prompt: expected one in each line" in " ".join(done.stderr.replace("│", " ").split())


def test_json_of_lines_as_they_are_typed_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = CliRunner().invoke(cli.app, ["generate", str(tmp_path / "no run"), "--json", str(out)])
    assert done.exit_code == 2
    assert "--json needs --prompt or --file" in done.stderr


def test_runs_and_updates_that_are_not_there_are_told(run: Path, tmp_path: Path) -> None:
    missing = gradwire("generate", f"{run}@3", "--prompt", "x")
    assert missing.returncode == 3
    nowhere = gradwire("generate", str(tmp_path / "none"), "--prompt", "x")
    assert nowhere.returncode == 3
    assert "No run" in nowhere.stderr
    store = gradwire("generate", str(run / "checkpoints"), "--prompt", "x")
    assert store.returncode == 3
    assert "name the run directory instead" in store.stderr
