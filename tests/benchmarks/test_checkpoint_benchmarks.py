import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import checkpoint_kills

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_large_states_memory_is_measured(tmp_path: Path) -> None:
    arguments = ["--gb", "0.21", "--rounds", "1", "--folder", str(tmp_path), "--json", str(tmp_path / "m.json")]
    run("checkpoint_memory", *arguments)
    results = json.loads((tmp_path / "m.json").read_text())
    assert [found["stage"] for found in results] == ["copy", "none"]
    for found in results:
        assert found["save"]["state"] == 3 * 64 * 2**20
        assert 0 < found["save"]["beyond"] < 0.4e9 and all(each["right"] for each in found["restores"])
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]


@pytest.mark.slow
def test_the_journals_bytes_and_times_are_measured(tmp_path: Path) -> None:
    small = ["--model", "decoder_1m", "--batch", "2", "--stretch", "2", "--rounds", "1"]
    run("checkpoint_journal", "costs", "--codec", "int8", *small, "--json", str(tmp_path / "j.json"))
    found = json.loads((tmp_path / "j.json").read_text())["costs"]["int8"]
    assert [stretch["mode"] for stretch in found["stretches"]][:3] == ["off", "interval", "update"]
    assert all(len(stretch["seconds"]) == 2 for stretch in found["stretches"])
    assert 0.5 < found["entry"] / found["parameters"] < 1.1
    assert found["less_than_plain"] > 0.9 and found["interval"] > 1000


def test_the_guide_has_the_table_of_the_killed_runs() -> None:
    guide = (ROOT / "docs" / "benchmarks.md").read_text()
    lives = checkpoint_kills.read(ROOT / "benchmarks" / "results" / "checkpoint_kills.json")
    assert sum(len(life.kills) for life in lives) > 200
    assert all(row in guide for row in checkpoint_kills.table(lives).splitlines())
