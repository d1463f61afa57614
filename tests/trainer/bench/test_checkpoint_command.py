"""`gradwire bench checkpoint` as users run it: a few megabytes, every contender, two rounds."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from gradwire.checkpoint.benchmark import NAMES, Measured
from gradwire.trainer import cli
from gradwire.trainer.bench.checkpoint_rows import rows

GRADWIRE = "from gradwire.trainer.cli import main; main()"
SMALL = ["--mb", "3", "--rounds", "2", "--updates", "2"]


def bench(*arguments, cwd, **variables):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(cwd), **variables}
    command = [sys.executable, "-c", GRADWIRE, "bench", "checkpoint", *SMALL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    done = bench("--ranks", "2", "--frozen", "0.9", "--json", "b.json", "--plot", "b.png", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, json.loads((folder / "b.json").read_text()), folder


def test_every_contender_has_its_figures(found):
    _, told, _ = found
    assert tuple(told["contenders"]) == NAMES and told["unavailable"] == {} and told["wrong"] == []
    assert told["ranks"] == 2 and 2.9e6 < told["state"] < 3.2e6
    for row in told["contenders"].values():
        assert all(len(row[step]) == 2 and min(row[step]) > 0 for step in ("stall", "durable", "warm"))
        assert len(row["cold"]) == (2 if told["cold"] else 0)
        assert row["over_ours"]["stall"][1] <= row["over_ours"]["stall"][0] <= row["over_ours"]["stall"][2]


def test_what_is_frozen_is_written_once_and_by_the_others_every_time(found):
    rows = found[1]["contenders"]
    assert rows["gradwire"]["written_share"] < 0.4
    assert all(rows[name]["written_share"] > 0.99 for name in ("torch.save", "dcp.save", "safetensors"))


def test_journalled_updates_are_recovered(found):
    assert [each["updates"] for each in found[1]["recovered"]] == [2, 2]
    assert all(each["written"] > 0 and each["replaying"] > 0 for each in found[1]["recovered"])


def test_the_table_and_the_picture_are_there_and_nothing_else_is_left(found):
    done, _, folder = found
    assert "safetensors" in done.stdout and "recovery of a snapshot and 2 journalled updates" in done.stdout
    with Image.open(folder / "b.png") as picture:
        assert picture.size == (1280, 720)
    assert {"b.json", "b.png"} <= {path.name for path in folder.iterdir()}
    assert not list(folder.glob("gradwire-bench-*"))


def test_a_state_that_comes_back_otherwise_ends_it_with_1(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "import torch\n"
        "right = torch.load\n"
        "def load(*arguments, **options):\n"
        "    tensors = right(*arguments, **options)\n"
        "    if isinstance(tensors, dict):\n"
        "        tensors['layers.3.norm'][0] += 1\n"
        "    return tensors\n"
        "torch.load = load\n"
        "sys.modules['safetensors'] = None\n"
    )
    done = bench("--json", "b.json", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "torch.save: update" in done.stderr, done.stderr
    assert "layers.3.norm came back otherwise than it was saved" in done.stderr
    assert "safetensors is not available" in done.stdout
    assert set(json.loads((tmp_path / "b.json").read_text())["unavailable"]) == {"safetensors"}


def test_ratios_are_of_paired_rounds():
    ours = Measured([1.0, 2.0], [4.0, 4.0], [50, 70], [1.0, 1.0], [2.0, 5.0], [1.0, 4.0])
    other = Measured([3.0, 6.0], [2.0, 2.0], [100, 100], [1.0, 2.0], [1.0, 1.0])
    table = rows({"gradwire": ours, "other": other}, 100)
    assert table["other"].over_ours["stall"] == (3.0, 3.0, 3.0)
    assert table["other"].over_ours["durable"] == (0.5, 0.5, 0.5)
    assert table["gradwire"].written_share == 0.6 and table["other"].of_disk is None
    assert table["gradwire"].of_disk == (0.65, 0.5, 0.8)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--frozen", "1"], "'--frozen'"),
        (["--rounds", "1"], "greater than or equal to 2"),
        (["--ranks", "0"], "greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused_with_2(arguments, hint):
    done = CliRunner().invoke(cli.app, ["bench", "checkpoint", *arguments])
    assert done.exit_code == 2 and hint in " ".join(done.output.split())
