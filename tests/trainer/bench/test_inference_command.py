"""`gradwire bench inference` as users run it: a small model, every contender, two rounds."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradwire.inference import Request
from gradwire.trainer.bench.inference_batching import workload
from gradwire.trainer.bench.inference_memory import Held, peaks, usable_share
from gradwire.trainer.bench.inference_rows import growth
from gradwire.trainer.models import Decoder
from tests.trainer.bench.test_checkpoint_command import GRADWIRE
from tests.trainer.commands import gradwire

pytest.importorskip("transformers")
SMALL = ["model.width=48", "model.layers=2", "--prompt", "8", "--tokens", "16", "--lengths", "8,16,24"]
LIGHT = ["--batches", "1,2", "--requests", "6", "--rows", "2", "--rounds", "2"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, object]]:
    folder = tmp_path_factory.mktemp("bench")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    command = [sys.executable, "-c", GRADWIRE, "bench", "inference", *SMALL, *LIGHT, "--json", "b.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir() if path.name.startswith("b.")} == {"b.json"}
    return done.stdout, json.loads((Path(folder) / "b.json").read_text())


def test_every_contender_has_its_figures_and_none_is_wrong(found: tuple[str, dict[str, object]]) -> None:
    text, told = found
    assert told["wrong"] == []
    assert told["unavailable"] == {}
    batches = told["batches"]
    assert isinstance(batches, dict)
    assert list(batches) == ["1", "2"]
    for table in batches.values():
        assert set(table) == {
            "gradwire",
            "gradwire, paged",
            "gradwire, int8",
            "transformers, dynamic",
            "transformers, static",
            "transformers' model, gradwire",
        }
        for row in table.values():
            assert len(row["seconds"]) == 2
            assert row["ours_over"][1] <= row["ours_over"][0] <= row["ours_over"][2]
        assert table["gradwire"]["ours_over"] == [1.0, 1.0, 1.0]
    assert "transformers, static" in text
    assert "usable share of the paged pool" in text
    assert "continuous" in text


def test_growth_memory_and_batching_are_told(found: tuple[str, dict[str, object]]) -> None:
    told: dict[str, object] = found[1]
    curves, peak, batching = told["growth"], told["peak"], told["batching"]
    assert isinstance(curves, dict) and isinstance(peak, dict) and isinstance(batching, dict)
    assert set(curves) == {"gradwire", "gradwire, no cache"}
    assert all(curve["tokens"] == [8, 16, 24] for curve in curves.values())
    assert peak["int8"] > 0 and peak["concatenating"] > 0
    assert len(batching["static"]) == len(batching["continuous"]) == 2


def test_the_fit_finds_linear_and_quadratic_growth() -> None:
    lengths = (64, 128, 256, 512)
    mixed = growth({n: 2e-3 * n + 3e-5 * n * n for n in lengths})
    assert (mixed.linear, mixed.quadratic) == pytest.approx((2e-3, 3e-5))
    linear = growth({n: 5e-3 * n for n in lengths})
    assert linear.linear == pytest.approx(5e-3)
    assert linear.quadratic == pytest.approx(0, abs=1e-12)
    assert linear.exponent == pytest.approx(1)
    slower = growth({n: 1e-3 * n**0.9 for n in lengths})
    assert slower.quadratic == 0
    assert growth({n: 1e-6 * n**3 for n in lengths}).linear == 0


def test_held_bytes_are_those_that_live_together() -> None:
    with Held() as held:
        kept = torch.zeros(1000)
        for _ in range(3):
            torch.zeros(500)
        view = kept[:10]
        kept.add_(1)
    assert held.most == 4 * 1500
    del view


def test_a_concatenating_cache_holds_more_than_one_that_is_allocated_once() -> None:
    model = Decoder(61, context=64, width=32, layers=2, heads=2, kv_heads=2).eval()
    found = peaks(model, 2, 2, 62)  # a short prompt: what it computes at once is large beside so small a cache
    assert found["window of a quarter"] < found["contiguous"] < found["concatenating"]
    assert found["int8"] < found["contiguous"]


def test_random_lengths_fill_a_pool_nearly() -> None:
    median, least = usable_share(512, 16, 16, 1024, 20)
    assert 0.95 < least <= median < 1


def test_the_workload_fits_and_is_mixed() -> None:
    requests: list[Request] = workload(200, 128, 61)
    lengths = [each.max_new_tokens for each in requests]
    assert all(len(each.prompt) + each.max_new_tokens <= 128 for each in requests)
    assert max(lengths) > 3 * sum(lengths) / len(lengths)
    assert math.isclose(sum(lengths) / len(lengths), 128 / 6, rel_tol=0.3)


@pytest.mark.parametrize(
    ("options", "message"), [(["--batches", "1,x"], "no list of counts"), (["--tokens", "1"], "--tokens")]
)
def test_mistakes_are_told(options: list[str], message: str) -> None:
    done = gradwire("bench", "inference", *options)
    assert done.returncode == 2
    assert message in done.stderr
