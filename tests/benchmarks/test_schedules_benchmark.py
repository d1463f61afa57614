import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KEYS = ["a", "b", "b2", "c", "d", "e", "f"]
COMPARED = ["a", "b", "b2", "c", "e"]
RESULTS = ROOT / "benchmarks" / "results" / "schedules.json"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any], str]]:
    folder = tmp_path_factory.mktemp("schedules")
    command = [sys.executable, "-m", "benchmarks.schedules", "--quick", "--seeds", "1", "--processes", "1"]
    command += ["--json", str(folder / "r.json"), "--plots", str(folder / "plots"), "--docs", str(folder / "r.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    yield folder, json.loads((folder / "r.json").read_text()), done.stdout


@pytest.mark.slow
def test_every_experiment_is_measured_printed_and_drawn(sample: tuple[Path, dict[str, Any], str]) -> None:
    folder, results, output = sample
    assert list(results) == KEYS
    assert all(f"\n({key}) " in output for key in results)
    assert sorted(path.name for path in (folder / "plots").iterdir()) == [f"{key}.png" for key in results]
    assert all((folder / "plots" / f"{key}.png").read_bytes().startswith(b"\x89PNG") for key in results)
    assert (folder / "r.md").read_text().count("\n## ") == len(KEYS)


@pytest.mark.slow
def test_each_arm_did_the_updates_and_samples_of_its_plan(sample: tuple[Path, dict[str, Any], str]) -> None:
    _, results, _ = sample
    arms = {key: results[key]["arms"] for key in COMPARED}
    assert {key: len(each) for key, each in arms.items()} == {"a": 5, "b": 3, "b2": 3, "c": 3, "e": 3}
    for each in arms.values():
        for arm in each.values():
            assert [run["updates"] for run in arm["runs"]] == [arm["updates"]]
            assert [run["samples"] for run in arm["runs"]] == [arm["samples"]]
        assert len({arm["samples"] for arm in each.values()}) == 1


@pytest.mark.slow
def test_plans_take_the_updates_that_their_rules_promise(sample: tuple[Path, dict[str, Any], str]) -> None:
    _, results, _ = sample
    small, large = (results["a"]["arms"][name]["updates"] for name in ("small batch", "large, rate not scaled"))
    assert large == -(-small // 8)
    falls, grows = (results["b"]["arms"][name] for name in ("rate falls", "batch grows instead"))
    assert falls["batch"] == [16, 16]
    assert grows["batch"] == [16, 256]
    assert grows["updates"] == pytest.approx(falls["updates"] * (1 / 2 + 1 / 16 + 1 / 64), abs=2)
    assert results["e"]["arms"]["batch warm-up"]["batch"] == [4, 32]
    assert results["e"]["arms"]["batch warm-up"]["updates"] > results["e"]["arms"]["constant batch"]["updates"]


@pytest.mark.slow
def test_every_figure_is_finite(sample: tuple[Path, dict[str, Any], str]) -> None:
    _, results, _ = sample
    for key in (*COMPARED, "f"):
        runs = [run for arm in results[key]["arms"].values() for run in arm["runs"]]
        assert all(math.isfinite(run["loss"]) and math.isfinite(run["train_loss"]) for run in runs)
        assert all(math.isfinite(loss) for run in runs for _, _, loss in run["curve"])
    assert all(0 < count < math.inf for counts in results["d"]["updates"].values() for count in counts)
    assert all(0 < value < math.inf for trace in results["d"]["noise"] for _, value in trace)
    for figures in results["f"]["steps"][0].values():
        assert all(math.isfinite(figure) for figure in figures.values())


@pytest.mark.slow
def test_one_update_at_the_small_rate_is_a_256th_of_the_scaled_one(sample: tuple[Path, dict[str, Any], str]) -> None:
    _, results, _ = sample
    steps = results["f"]["steps"][0]
    plain, scaled = steps["0.0001: 1 update of 256"], steps["0.0001: 1 update of 256, rate × 256"]
    assert scaled["expectation"] == pytest.approx(256 * plain["expectation"], rel=1e-3)
    assert scaled["variance"] == pytest.approx(256**2 * plain["variance"], rel=1e-3)


def test_the_page_of_experiments_is_what_was_measured() -> None:
    code = "import json, sys; from benchmarks.schedules.report import page; print(page(json.load(sys.stdin)), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=RESULTS.read_text(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "docs" / "experiments.md").read_text()
    plots = {path.stem for path in (ROOT / "docs" / "plots").glob("*.png")}
    assert plots >= json.loads(RESULTS.read_text()).keys() == set(KEYS)
