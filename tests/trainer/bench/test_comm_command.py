"""`gradwire bench comm` as users run it: real processes, a few sizes."""

import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from gradwire.trainer import cli
from gradwire.trainer.bench.comm import topology_of
from gradwire.trainer.bench.command import parse_rate, parse_sizes
from gradwire.trainer.bench.errors import BenchUsageError
from tests.trainer.commands import gradwire

GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]
FEW = ["--algorithms", "ring", "--codecs", "int8", "--rounds", "2"]


def bench(*arguments, cwd, program=GRADWIRE):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(cwd)}
    return subprocess.run([*program, "bench", "comm", *arguments], capture_output=True, text=True, cwd=cwd, env=environ)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    files = ["--json", "b.json", "--plot", "b.png"]
    done = bench("--axes", "node=2", "--sizes", "4B,64KB", "--link", "1gbit", *FEW, *files, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, json.loads((folder / "b.json").read_text()), folder


def test_every_contender_has_its_figures_at_every_size(found):
    _, told, _ = found
    assert (told["topology"], told["ranks"], told["hosts"], told["backend"]) == ({"node": 2}, 2, 2, "gloo")
    assert (told["link"], told["link_from"], told["wrong"], told["unavailable"]) == (1.25e8, "given", [], {})
    assert [list(rows) for rows in told["sizes"].values()] == [["gloo", "ring", "native/int8"]] * 2
    for size, nbytes in (("4B", 4), ("64KB", 65536)):
        for row in told["sizes"][size].values():
            assert len(row["seconds"]) == 2 and row["milliseconds"] > 0 and row["same_bits"]
            assert row["algbw"] == pytest.approx(nbytes / row["milliseconds"] * 1e3)
            assert row["busbw"] == row["algbw"]  # 2(P − 1)/P is 1 for two ranks


def test_results_are_exact_without_and_close_with_a_codec(found):
    rows = found[1]["sizes"]["64KB"]
    assert rows["gloo"]["error"] == rows["ring"]["error"] == 0
    assert 0.001 < rows["native/int8"]["error"] < 0.0098


def test_bytes_are_counted_and_compared_with_the_links_bound(found):
    rows = found[1]["sizes"]["64KB"]
    assert rows["ring"]["payload"] == rows["ring"]["counted"] == 65536
    assert rows["native/int8"]["payload"] == rows["native/int8"]["counted"] < 0.26 * 65536
    assert rows["gloo"]["wire_from"] == "interface" and rows["gloo"]["wire"] > 2 * 65536  # both ranks, and headers
    ratios = [65536 / 1.25e8 / seconds for seconds in rows["ring"]["seconds"]]
    assert rows["ring"]["of_bound"][0] == pytest.approx(sum(ratios) / 2)


def test_the_backend_is_compared_with_itself(found):
    assert found[1]["sizes"]["4B"]["gloo"]["over_backend"] == [1.0, 1.0, 1.0]


def test_the_table_and_the_picture_are_there(found):
    done, _, folder = found
    assert "2 ranks, node=2; a host's link, given: 1,000 Mbit/s" in done.stdout and "WRONG" not in done.stdout
    with Image.open(folder / "b.png") as picture:
        assert picture.size == (1280, 720)
    assert sorted(path.name for path in folder.iterdir()) == ["b.json", "b.png"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--axes", "local"], "is no axis"),
        (["--sizes", "4KB,3B"], "'3B' is no size"),
        (["--algorithms", "rnig"], "'rnig' is none of native"),
        (["--codecs", "int9"], "'int9' is none of"),
        (["--link", "fast"], "'fast' is no rate"),
        (["--rounds", "1"], "greater than or equal to 2"),
    ],
)
def test_wrong_options_are_refused_with_2(arguments, hint):
    done = CliRunner().invoke(cli.app, ["bench", "comm", *arguments])
    assert done.exit_code == 2 and hint in " ".join(done.output.split())


def test_a_wrong_override_is_refused_with_2(tmp_path):
    done = gradwire("bench", "comm", "launch.proceses=2", cwd=tmp_path)
    assert done.returncode == 2 and "launch.processes" in done.stderr and "Traceback" not in done.stderr


def test_axes_of_another_number_of_ranks_are_refused_with_2():
    with pytest.raises(BenchUsageError, match="--axes: ring=3 makes 3 ranks and there are 2") as refusal:
        topology_of({"ring": 3}, 2)
    assert refusal.value.exit_code == 2
    with pytest.raises(BenchUsageError, match=r"launch\.processes=2"):
        topology_of(None, 1)


def test_under_torchrun_it_uses_the_ranks_given_and_a_wrong_result_ends_it_with_1(tmp_path):
    (tmp_path / "wrong.py").write_text(
        "from gradwire.comm.all_reduce import AllReduce\n"
        "right = AllReduce.__call__\n"
        "def wrong(self, tensor, *arguments, **more):\n"
        "    work = right(self, tensor, *arguments, **more)\n"
        "    tensor[0] += 2**-10\n"
        "    return work\n"
        "AllReduce.__call__ = wrong\n"
        "from gradwire.trainer.cli import main\n"
        "main()\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "wrong.py"]
    arguments = ["--sizes", "4KB", "--algorithms", "ring", "--codecs", "none", "--rounds", "2", "--json", "b.json"]
    done = bench(*arguments, cwd=tmp_path, program=torchrun)
    assert done.returncode == 1 and "Results were wrong:" in done.stderr, done.stderr
    assert "4KB: ring: relative error" in done.stderr and "WRONG" in done.stdout
    told = json.loads((tmp_path / "b.json").read_text())
    assert told["topology"] == {"local": 2, "node": 1} and len(told["wrong"]) == 1


def test_sizes_and_rates_are_read():
    assert parse_sizes("4B, 2KB,1MB") == {"4B": 1, "2KB": 512, "1MB": 262_144}
    assert parse_rate("200mbit") == 25e6 and parse_rate("1gbit") == 1.25e8
