"""What a command asks for: everything wrong is told at once, in the words of the configuration, and nothing is made."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.errors import SweepExistsError, SweepNotFoundError
from gradwire.trainer.sweep.request import requested
from tests.trainer.commands import gradwire

GUIDE = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()
CPU = ["launch.device=cpu", "launch.processes=1"]
SPACE = ["optimizer.lr=tag(log, interval(1e-4, 1e-2))", "lr=wsd,warmup_cosine"]


def listings(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def complaints(*overrides: str, config_dir: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        requested([*overrides, *CPU], config_dir)
    return str(raised.value).splitlines()


def test_a_sweep_is_told_from_what_its_trials_have_in_common(tmp_path: Path) -> None:
    sweep = requested([f"sweep.dir={tmp_path}/a b", "run.length=40 updates", *SPACE, "sweep.seeds=2", *CPU], None)
    assert sweep.overrides == ("run.length=40 updates", *CPU)
    assert sweep.trials() == 20 and sweep.parallel == 1 and sweep.study.startswith("a b-")
    overrides = sweep.overrides_of(sweep.trial(3), {"optimizer.lr": 0.001, "lr": "wsd"}, 1)
    assert overrides[-6:] == [
        "optimizer.lr=0.001",
        "lr=wsd",
        f"run.dir='{tmp_path}/a b/trials/3/seed-1'",
        "run.name='decoder-small-3-1'",
        "run.seed=1",
        f"logger.wandb.group='{sweep.study}'",
    ]


def test_what_is_kept_in_the_folder_is_the_same_sweep(tmp_path: Path) -> None:
    sweep = requested([f"sweep.dir={tmp_path}/s", *SPACE, "sweep/pruner=median", "sweep/sampler=quasi", *CPU], None)
    sweep.write()
    again = Definition.read(tmp_path / "s")
    assert again.section["pruner"] == sweep.section["pruner"] and again.section["objective"] == "eval/loss"
    assert again.overrides_of(again.trial(0), {"optimizer.lr": 0.1, "lr": "wsd"}, 0) == sweep.overrides_of(
        sweep.trial(0), {"optimizer.lr": 0.1, "lr": "wsd"}, 0
    )
    with pytest.raises(SweepExistsError, match="gradwire sweep --resume"):
        sweep.write()
    more = again.changed(["sweep.trials=7", "sweep.parallel=2", "allow_targets=[mine]"])
    assert (more.trials(), more.parallel, more.allow_targets) == (7, 2, ("mine",))
    with pytest.raises(ConfigError) as raised:
        again.changed(["sweep.seed=1", "optimizer.lr=1", "sweep.trials=none", "sweep.parallel=0"])
    assert [str(each).partition(":")[0] for each in raised.value.mistakes] == [
        "sweep.seed (override 'sweep.seed=1')",
        "optimizer.lr (override 'optimizer.lr=1')",
    ]
    with pytest.raises(ConfigError, match=r"sweep.parallel.*at least 1"):
        again.changed(["sweep.parallel=0"])


def test_a_stored_sweep_cannot_allow_itself_anything(tmp_path: Path) -> None:
    requested([f"sweep.dir={tmp_path}/s", "allow_targets=[os]", *SPACE, *CPU], None).write()
    assert Definition.read(tmp_path / "s").allow_targets == ()
    path = tmp_path / "s" / "sweep.json"
    path.write_text(path.read_text().replace("gradwire.trainer.sweep.samplers.Tpe", "os.system"))
    with pytest.raises(ConfigError, match=r"os\.system lies outside"):
        Definition.read(tmp_path / "s")


def test_a_sweep_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"version": 2}')
    with pytest.raises(SweepNotFoundError, match="is of version 2 and this gradwire reads 1"):
        Definition.read(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"space": 3}', '{"version": 1, "space": [["a"]], "config_dir": null}']
)
def test_a_damaged_sweep_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(SweepNotFoundError, match=r"sweep\.json is damaged"):
        Definition.read(tmp_path)


def test_every_mistake_is_told_with_what_the_user_wrote(tmp_path: Path) -> None:
    folder = f"sweep.dir={tmp_path}/s"
    told = complaints(
        folder,
        "run.lengt=5",
        "optimizer.lrr=interval(1e-4, 1e-2)",
        "clip=interval(2, 1)",
        "batch.size=interval(8, 64)",
        "lr=wsd,wdd",
        "ema=choice(0.9, high)",
        "sweep.trials=many",
    )
    assert len(told) == 7
    text = "\n".join(told)
    assert "run.lengt (override 'run.lengt=5'): no such key; did you mean run.length?" in text
    assert "optimizer.lrr (override 'optimizer.lrr=interval(1e-4, 1e-2)'): no such key" in text
    assert "clip (override 'clip=interval(2, 1)'): is empty" in text
    assert "did you mean batch.size=int(interval(8, 64))?" in text
    assert "lr (override 'lr=wsd,wdd'): there is no lr called wdd" in text
    assert "ema (override 'ema=choice(0.9, high)'): expected a number or null, found the text 'high'" in text
    assert "sweep.trials (override 'sweep.trials=many'): expected an integer" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sweep.dir=s"], "sweep.space: nothing to sweep"),
        ([*SPACE], "sweep.dir (conf/sweep/default.yaml"),
        (["sweep.dir=s", *SPACE, "sweep/sampler=grid"], "optimizer.lr has no end of values"),
        (["sweep.dir=s", "lr=wsd,step", "sweep/sampler=cmaes"], "no parameter here has an order"),
        (["sweep.dir=s", *SPACE, "sweep/pruner=medium"], "there is no sweep/pruner called medium"),
        (["sweep.dir=s", *SPACE, "sweep.sampler=grid"], "did you mean sweep/sampler=grid?"),
        (["sweep.dir=s", *SPACE, "sweep.objective=[]"], "names no metric"),
        (["sweep.dir=s", *SPACE, "sweep.objective={metric: a, directon: maximize}"], "no such key"),
        (
            ["sweep.dir=s", *SPACE, "sweep.objective=[{metric: a}, {metric: b}]", "sweep/pruner=median"],
            "trials are ended early by one objective",
        ),
        (["sweep.dir=s", *SPACE, "sweep.constraints=[{metric: a}]"], "limits a in no way"),
        (["sweep.dir=s", *SPACE, "sweep/sampler=pbt", "sweep/pruner=median"], "replaced, not ended"),
        (["sweep.dir=s", *SPACE, "run.stop_at=50%"], "a trial's run goes to its end"),
        (["sweep.dir=s", "run.seed=1,2", "sweep.seeds=2"], "averages over run.seed"),
        (["sweep.dir=s", *SPACE, "run.dir=here"], "each trial has a folder of its own"),
        (["sweep.dir=s", *SPACE, "batch.size=6", "batch.granule=4"], "6 is no multiple of batch.granule"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: list[str], message: str) -> None:
    assert message in "\n".join(complaints(*overrides))


def test_settings_that_contradict_each_other_are_told_together() -> None:
    told = complaints(
        "sweep.dir=''",
        *SPACE,
        "sweep.objective=[{metric: eval/loss},{metric: eval/loss}]",
        "sweep.constraints=[{metric: lr, at_most: 1, at_least: 2},{metric: lr, at_most: 3}]",
        "evaluation.every=null",
        "sweep/pruner=hyperband",
        "sweep.pruner.brackets=9",
        "clip=interval(1, 2)",
    )
    assert [each.partition(" (")[0] for each in told] == [
        "sweep.dir", "sweep.objective", "sweep.objective", "sweep.constraints", "sweep.constraints[0]",
        "sweep.pruner", "sweep.pruner",
    ]  # fmt: skip
    text = "\n".join(told)
    for part in ("names eval/loss twice", "evaluation.every=null has none", "at least 2.0 and at most 1.0", "is more"):
        assert part in text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SPACE, "clip=1", "clip=2,3"], "clip (override 'clip=2,3'): is given one value by another override"),
        (["clip=interval(1"], "override 'clip=interval(1': cannot be read"),
        (
            [*SPACE, "sweep/sampler=pbt", "sweep.sampler.generations=50", "run.length=10 updates"],
            "a run of 10 updates is too short: its generations end at updates 1, 1, 1, 1, 1, 2,",
        ),
        (
            [*SPACE, "sweep/pruner=hyperband", "batch.size=2", "run.length=5 updates"],
            "its rungs lie at updates 0, 1, 2",
        ),
        (
            [*SPACE, "checkpoint.url=s3://bucket/here"],
            "checkpoint.url (override 'checkpoint.url=s3://bucket/here'): is s3://bucket/here for several runs",
        ),
        ([*SPACE, "checkpoint.tiers=[memory,/fast]", "sweep.seeds=2"], "checkpoint.tiers[1]"),
        ([*SPACE, "checkpoint.url=/all/${run.seed}", "sweep.seeds=2"], "is /all/0 for several runs"),
        (["checkpoint.url=/one,/other"], "such as '/one/${run.name}'"),
    ],
)
def test_one_mistake_is_told_once(overrides: list[str], message: str) -> None:
    (told,) = complaints("sweep.dir=s", *overrides)
    assert message in told


def test_stores_that_differ_by_the_runs_name_or_folder_are_accepted() -> None:
    own = ["checkpoint.url=s3://bucket/first/${run.name}", "checkpoint.tiers=[memory,'/fast/${run.dir}']"]
    assert requested(["sweep.dir=s", "sweep.seeds=2", *SPACE, *own, *CPU], None).overrides[:2] == tuple(own)


def test_the_guides_yaml_is_a_sweep_and_its_mistakes_are_told_as_shown(tmp_path: Path) -> None:
    experiment, _ = listings("yaml")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(experiment)
    sweep = requested(["sweep.dir=s", "experiment=mine", "lr=wsd", *CPU], tmp_path)
    assert [each.key for each in sweep.space.parameters] == ["optimizer.lr", "batch.size"] and sweep.trials() == 30
    told = complaints(
        "sweep.dir=s", "experiment=mine", "lr=wsd", "sweep.space.clip='interval(1, 0)'", config_dir=tmp_path
    )
    assert told[0].startswith("clip (override 'sweep.space.clip='interval(1, 0)''): is empty") and len(told) == 1
    (listing,) = listings("console")
    command, *shown = listing.splitlines()
    done = gradwire(*shlex.split(command.removeprefix("$ "))[1:], cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (2, shown)


COMMANDS = [
    line for text in listings("sh") for line in text.splitlines() if line.startswith("gradwire sweep sweep.dir")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_guides_sweeps_are_accepted(command: str) -> None:
    overrides = shlex.split(command, comments=True)[2:]
    assert requested([*overrides, *CPU], None).space.parameters


PARTS = [line for text in listings("sh") for line in text.splitlines() if line.startswith("gradwire train --resume")]


def test_the_guides_parts_of_a_run_are_accepted() -> None:
    for command in PARTS:
        assert validate(compose([*shlex.split(command)[3:], *CPU])).config["run"]["stop_at"]
    assert len(PARTS) == 2


def test_the_guides_agent_of_weights_and_biases_starts_what_is_right() -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    told = yaml.safe_load(listings("yaml")[1])
    chosen = {"optimizer.lr": {"value": 0.0123}, "lr": {"value": "wsd"}}
    assert told["parameters"].keys() == chosen.keys()
    parts = {"${program}": [told["program"]]} | {
        f"${{{name}}}": value for name, value in create_sweep_command_args({"args": chosen}).items()
    }
    command = [word for part in create_sweep_command(told["command"]) for word in parts.get(part, [part])]
    assert command[:2] == ["gradwire", "train"]
    config = validate(compose([*command[2:], *CPU])).config
    assert config["optimizer"]["lr"] == 0.0123 and config["lr"]["_target_"].endswith("WarmupStableDecay")
