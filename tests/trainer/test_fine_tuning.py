"""The guide to fine-tuning, command by command; and a run with an adapter that resumes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradwire.checkpoint import load_weights
from gradwire.checkpoint.export import import_weights

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "fine_tuning.md").read_text()
BIN = Path(sys.executable).parent
SHORT = [
    "run.length=6 updates",
    "evaluation.limit=16",
    "evaluation.sample_length=4",
    "launch.device=cpu",
    "data.workers=0",
]
TINY = ["model.width=32", "model.layers=2", "model.heads=2", "model.kv_heads=1"]


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def shortened(line: str) -> list[str]:
    program, *rest = shlex.split(line.partition(" #")[0])
    if program == "python":
        return [sys.executable, *rest]
    if rest[0] == "train":
        rest += [*SHORT, *([] if "hf_causal_lm" in line else TINY), "launch.processes=1"]
        if "run.dir=runs/tuned" in line:
            rest[-1] = "launch.processes=2"
            rest += ["checkpoint=journal", "checkpoint.every=2 updates", "checkpoint.keep=9", "run.log_every=1"]
    if rest[0] == "data":
        rest += TINY
    return [str(BIN / program), *rest]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in which every command of the guide was run, in order, and what each said."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "examples").symlink_to(ROOT / "examples")
    lines = [line for block in fences("sh") for line in block.splitlines() if line.strip()]
    return folder, {line.partition(" #")[0].strip(): run(shortened(line), folder) for line in lines}


@pytest.mark.slow
def test_every_command_of_the_guide_runs(told: tuple[Path, dict[str, str]]) -> None:
    _, said = told
    trained = [output for command, output in said.items() if " train " in command]
    assert len(trained) == 5
    assert all("(done)" in output for output in trained)
    assert " conversations in chats.jsonl" in said["python examples/conversations_from_docstrings.py chats.jsonl"]
    (evaluated,) = [output for command, output in said.items() if " evaluate " in command]
    assert json.loads(evaluated)["update"] == 6


@pytest.mark.slow
def test_the_preview_shows_what_is_learned(told: tuple[Path, dict[str, str]]) -> None:
    (shown,) = [output for command, output in told[1].items() if " preview " in command]
    first, *text = shown.splitlines()
    assert re.fullmatch(r"sample 2: \d+ documents?, 128 tokens, \d+ learned(, \d+ of padding)?", first)
    assert re.search(r"^── user: What is [\w.]+\?\nassistant:⟦ [^⟧]+␜⟧$", "\n".join(text), re.MULTILINE)


@pytest.mark.slow
def test_the_adapter_alone_is_trained_and_its_base_stored_once(told: tuple[Path, dict[str, str]]) -> None:
    folder, _ = told
    base = load_weights(folder / "runs" / "base")[0]
    stored = run([str(BIN / "gradwire"), "checkpoint", "log", "runs/tuned", "--json"], folder)
    first, *later = [entry["added"] for entry in json.loads(stored)["snapshots"]]
    tuned = load_weights(folder / "runs" / "tuned")[0]
    frozen = sum(tensor.nbytes for tensor in base.values())
    low = sum(tensor.nbytes for name, tensor in tuned.items() if ".lora_" in name)
    assert first > 0.7 * frozen
    assert all(added < 3 * low + 20_000 for added in later)  # with both moments, and names; the base is 130 KB
    for name, tensor in base.items():
        where = name if name in tuned else f"{name.rpartition('.')[0]}.base_layer.{name.rpartition('.')[2]}"
        assert torch.equal(tuned[where], tensor)
    assert any(tensor.any() for name, tensor in tuned.items() if ".lora_B." in name)


@pytest.mark.slow
def test_the_export_has_the_sums_and_all_that_transformers_reads(told: tuple[Path, dict[str, str]]) -> None:
    folder, _ = told
    names = {path.name for path in (folder / "tuned").iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    (listing,) = fences("python")
    (folder / "use.py").write_text(listing)
    run([sys.executable, "use.py"], folder)
    tuned = load_weights(folder / "runs" / "tuned")[0]
    part = "blocks.0.down"
    delta = tuned[f"{part}.lora_B.default.weight"] @ tuned[f"{part}.lora_A.default.weight"] * 2  # alpha / rank
    found = import_weights(folder / "tuned")["model.layers.0.mlp.down_proj.weight"]
    torch.testing.assert_close(found, tuned[f"{part}.base_layer.weight"] + delta, rtol=1e-6, atol=1e-7)
    assert {path.name for path in (folder / "tuned-adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


@pytest.mark.slow
def test_a_run_with_an_adapter_resumes_to_the_same_bits_and_otherwise_arranged(
    told: tuple[Path, dict[str, str]],
) -> None:
    folder, _ = told
    whole, losses = load_weights(folder / "runs" / "tuned")[0], recorded(folder / "runs" / "tuned")
    for name, update, more in (
        ("again", 5, []),
        ("alone", 2, ["launch.processes=1"]),
        ("sharded", 2, ["strategy=fsdp"]),
    ):
        shutil.copytree(folder / "runs" / "tuned", folder / "runs" / name)
        run([str(BIN / "gradwire"), "resume", f"runs/{name}@{update}", *more], folder)
        found = load_weights(folder / "runs" / name)[0]
        if name == "again":
            assert all(torch.equal(found[key], tensor) for key, tensor in whole.items())
            assert recorded(folder / "runs" / name) == losses
        assert recorded(folder / "runs" / name) == pytest.approx(losses, rel=1e-5)


def recorded(folder: Path) -> list[float]:
    """The losses of a run, by update."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record["train/loss"] for record in records if "train/loss" in record]
