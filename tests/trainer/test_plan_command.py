"""`gradwire plan`: its table, its numbers and its picture agree with the plan that training follows."""

import json
import math
import subprocess
import sys
from unittest import mock

import pytest
from PIL import Image

from gradwire.schedulers import Clock, Plan, batch, lr
from gradwire.trainer import plan_table, plots
from gradwire.trainer.plan_outline import outline
from tests.trainer.commands import gradwire

WITHOUT_MATPLOTLIB = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
sys.modules["matplotlib"] = None
from gradwire.trainer.cli import main
main()
"""
SMALL = ["batch.size=64", "batch=linear_warmup", "lr=warmup_linear", "run.length=30_000 samples"]


def plan(*arguments, cwd):
    return gradwire("plan", *arguments, cwd=cwd)


def table(text):
    """The rows under the header, as numbers."""
    lines = text.splitlines()[1:]
    return [[float(cell.replace(",", "").rstrip("%")) for cell in line.split()] for line in lines[: lines.index("")]]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    done = plan(*SMALL, "launch.processes=2", "batch.micro=8", "--json", "p.json", "--png", "p.png", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def configured():
    """What `printed` configures."""
    return Plan(
        lr=0.005 * lr.WarmupLinearDecay(),
        batch=64 * batch.LinearWarmup("10%"),
        run_length="30_000 samples",
        context=128,
    )


def test_every_row_is_the_plan_at_that_update(printed):
    text, _ = printed
    updates = {clock.updates: (clock, step) for clock, step in configured().updates()}
    rows = table(text)
    assert 12 <= len(rows) <= 16
    for update, samples, tokens, share, size, rate in rows:
        clock, step = updates[update]
        assert (samples, tokens, size) == (clock.samples, clock.tokens, step.batch_size)
        assert rate == pytest.approx(step.lr, rel=1e-3)
        assert share == pytest.approx(100 * samples / 30_000, abs=0.06)


def test_the_first_and_the_last_update_and_the_end_of_the_warm_up_are_in_the_table(printed):
    rows = {int(row[0]): row for row in table(printed[0])}
    full = next(clock.updates for clock, step in configured().updates() if step.batch_size == 64)
    assert 0 in rows and configured().total_updates - 1 in rows
    assert full in rows and rows[full][4] == 64


def test_totals_count_updates_passes_and_the_constant_run(printed):
    text, folder = printed
    record = json.loads((folder / "p.json").read_text())
    plan = configured()
    assert record["totals"] == {
        "updates": plan.total_updates,
        "samples": 30_000,
        "tokens": 30_000 * 128,
        "largest_batch": 64,
        "world_size": 2,
        "micro_batch": 8,
        "passes": 4,  # a share of 32 in passes of 8
    }
    constant = record["constant_batch"][0]
    assert (constant["batch_size"], constant["updates"]) == (64, math.ceil(30_000 / 64))
    assert constant["change"] == pytest.approx(plan.total_updates / 469 - 1)
    assert f"469 updates of 64 samples: this run takes {constant['change']:.1%} more" in text
    assert "4 in an update of the largest batch (batch.micro=8, 2 ranks)" in text


def test_json_holds_points_of_the_plan(printed):
    record = json.loads((printed[1] / "p.json").read_text())
    plan = configured()
    assert 500 < len(record["points"]) <= 1000
    for point in record["points"]:
        step = plan.at(Clock(samples=point["samples"]))
        assert (point["batch_size"], point["lr"]) == (step.batch_size, step.lr)
    assert [point["update"] for point in record["points"]] == sorted({point["update"] for point in record["points"]})


def test_the_picture_opens_in_its_size(printed):
    with Image.open(printed[1] / "p.png") as image:
        assert (image.format, image.size) == ("PNG", plots.SIZE)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50


def test_nothing_is_left_behind(tmp_path):
    assert plan("run.length=20 updates", cwd=tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_constant_batch_takes_as_many_updates_as_itself(tmp_path):
    text = plan("run.length=20 updates", "launch.processes=1", cwd=tmp_path).stdout
    assert "20 updates of 16 samples: this run takes as many" in text
    assert "batch.micro=auto: decided on the devices, on 1 rank" in text


def test_a_compiled_model_takes_the_passes_of_few_shapes(tmp_path):
    sizes = ["batch.size=27", "batch.micro=16", "launch.processes=1", "run.length=20 updates"]
    compiled, plain = (plan(*sizes, f"compile={value}", cwd=tmp_path).stdout for value in ("true", "false"))
    assert "4 in an update of the largest batch" in compiled  # 16, 8, 2 and 1
    assert "2 in an update of the largest batch" in plain


def test_epochs_are_those_of_the_data(tmp_path):
    done = plan("experiment=digits", "run.length=2 epochs", "--json", "p.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "p.json").read_text())["totals"]["samples"] == 2 * 1438  # 80 % of 1797


def test_betas_are_shown_where_they_change(tmp_path):
    change = ["scaling=sqrt", "scaling.adapt_betas=true", "batch.size=64", "scaling.reference=16"]
    text = plan("batch=linear_warmup", *change, cwd=tmp_path).stdout
    header, *_ = text.splitlines()
    assert header.split()[-2:] == ["beta1", "beta2"]
    assert table(text)[-1][-2:] == pytest.approx([0.6, 0.8])  # κ = 4
    assert "beta1" not in plan(cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["optimizer.lrr=1"], "optimizer.lr"),
        (["lr.warmup=10"], "10 updates"),
        (["batch.size=10", "batch.granule=4"], "granule"),
        (["--pngg", "x.png"], "--png"),
        (["--json", "nowhere/p.json"], "nowhere/p.json"),
        (["--png", "nowhere/p.png"], "nowhere/p.png"),
    ],
)
def test_a_mistake_is_refused_with_2_and_names_what_is_wrong(tmp_path, arguments, said):
    done = plan(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("option", ["--json", "--png"])
def test_a_disk_that_is_full_when_the_plan_is_made_is_one_line(tmp_path, option):
    done = plan("run.length=20 updates", option, "/dev/full", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "/dev/full cannot be written: No space left on device\n")


def test_a_rule_for_another_optimizer_is_noted(tmp_path):
    done = plan("scaling=linear", cwd=tmp_path)
    assert done.returncode == 0 and "scaling is Linear, which was shown for SGD" in done.stderr


@pytest.mark.parametrize("length", ["9e18 samples", "1e17 updates", "1e300 samples"])
def test_a_run_beyond_all_counting_is_planned_or_refused(tmp_path, length):
    done = plan(f"run.length={length}", "data.context=1", "--json", "p.json", "--png", "p.png", cwd=tmp_path)
    assert done.returncode == (2 if length == "1e300 samples" else 0), done.stderr
    assert "Traceback" not in done.stderr


def test_without_matplotlib_the_table_is_printed_and_a_picture_refused(tmp_path):
    program = [sys.executable, "-c", WITHOUT_MATPLOTLIB, "plan"]
    assert subprocess.run(program, capture_output=True, cwd=tmp_path).returncode == 0
    with mock.patch("importlib.util.find_spec", lambda name: None):
        done = plan("--png", "p.png", cwd=tmp_path)
    assert done.returncode == 2 and "pip install 'gradwire[plot]'" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_steps_of_long_runs_are_found_exactly():
    plan = Plan(
        lr=1e-3,
        batch=(64 * batch.Constant("1_000_003 samples")).then(512 * batch.Constant()),
        run_length="1e9 samples",
    )
    found = outline(plan)
    before, after = (next(p for p in found.points if p.clock.updates == update) for update in (15_625, 15_626))
    assert (before.step.batch_size, after.step.batch_size) == (64, 512)
    assert after in found.rows
    assert len(found.points) <= 1000


def test_points_of_long_runs_are_updates_of_the_plan():
    plan = Plan(lr=1.0 * lr.WarmupCosine(), batch=32 * batch.LinearWarmup("30%"), run_length="60_000 samples")
    starts = {clock.updates: clock.samples for clock, _ in plan.updates()}
    found = outline(plan, context=3)
    assert plan.total_updates > 2000 and len(found.points) <= 1000
    assert all(
        starts[p.clock.updates] == p.clock.samples and p.clock.tokens == 3 * p.clock.samples for p in found.points
    )


def test_a_run_of_millions_of_updates_is_not_walked_through(monkeypatch):
    plan = Plan(lr=1.0 * lr.WarmupCosine(), batch=512 * batch.LinearWarmup("20%"), run_length="5e6 updates")
    calls = []
    at = plan.at
    monkeypatch.setattr(plan, "at", lambda clock: calls.append(clock) or at(clock))
    found = outline(plan)
    assert found.points[-1].clock.updates == 4_999_999 and len(calls) < 5000


def test_measured_rules_say_that_sizes_are_decided_while_training(monkeypatch):
    found = outline(Plan(lr=1.0, batch=8, run_length="10 updates"))
    totals = plan_table.Totals(10, 80, 80, 8, 1, None, None)
    assert plan_table.MEASURED not in plan_table.to_text(found, totals, [])
    monkeypatch.setattr(type(found), "measures", True)
    assert plan_table.MEASURED in plan_table.to_text(found, totals, [])
