"""`gradwire checkpoint`: what each command prints, and what it returns to the shell."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from gradwire.checkpoint import Checkpointer
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from gradwire.trainer import cli
from tests.checkpoint.places import corrupt, place, s3_endpoint, save  # noqa: F401
from tests.checkpoint.states import same_state, state_at


def checkpoint(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.app, ["checkpoint", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*arguments: str) -> Any:
    result = checkpoint(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run under runs/, by its name."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "runs" / "spiky"
    directory.mkdir(parents=True)
    config = {"run": {"name": "spiky", "dir": None}, "checkpoint": {"url": None, "keep": 2, "keep_best": 0}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    (directory / "overrides.txt").write_text("optimizer.lr=1\n")
    save(str(directory / "checkpoints"), range(1, 5), {2: float("nan"), 3: 1.5})
    return "spiky"


def test_log_lists_every_restorable_update(place: str) -> None:  # noqa: F811
    checkpointer = save(place, range(1, 4), {3: 1.5})
    Tags(Store.open(place)).create("gold", checkpointer.at(2))
    log = told("log", place)
    assert log["updates"] == [1, 2, 3]
    assert [entry["tags"] for entry in log["snapshots"]] == [[], ["gold"], []]
    assert log["snapshots"][2]["metrics"] == {"eval/loss": 1.5}
    text = checkpoint("log", place).stdout
    assert "3 updates of the present branch can be restored, the newest is 3" in text
    assert all(word in text for word in ("snapshot", "eval/loss=1.5", "interval", "gold", "present"))


def test_show_lists_the_tensors(run: str) -> None:
    shown = told("show", f"{run}@3")
    assert (shown["update"], shown["captured"]["shared"]) == (3, ["model", "optimizer", "average", "update"])
    weight = {"name": "shared.model.weight", "dtype": "float32", "shape": [1000], "bytes": 4000}
    assert weight in shown["tensors"]
    assert shown["values"]["shared.update"] == 3
    text = checkpoint("show", run).stdout
    assert all(word in text for word in ("shared.model.weight", "float32", "1000", "4,000", "captured, local"))
    assert "update            4\n" in text


def test_a_tag_stands_for_an_update(run: str) -> None:
    assert checkpoint("tag", f"{run}@2", "spike").exit_code == 0
    assert list(told("tag", run)) == ["spike"]
    assert "spike" in checkpoint("tag", run).stdout
    assert told("show", f"{run}@spike")["update"] == 2
    assert checkpoint("tag", run, "spike", "--delete").exit_code == 0
    missing = checkpoint("show", f"{run}@spike")
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "has no tag 'spike'; it has: none" in missing.stderr


def test_a_store_with_an_at_in_its_name_is_found(tmp_path: Path) -> None:
    save(str(tmp_path / "me@home"), range(1, 3))
    assert told("log", str(tmp_path / "me@home"))["updates"] == [1, 2]
    assert told("show", f"{tmp_path}/me@home@1")["update"] == 1


def test_diff_tells_what_moved_and_how_far(run: str) -> None:
    moved = {each["name"]: each for each in told("diff", f"{run}@1", "@2")}
    assert moved["shared.model.weight"]["change"] == "changed"
    assert moved["shared.optimizer.state.0.step"]["largest"] == 1.0
    assert moved["shared.model.empty"]["change"] == "equal"
    text = checkpoint("diff", f"{run}@1", f"runs/{run}/checkpoints@2").stdout
    assert "shared.model.weight" in text
    assert "shared.model.empty" not in text
    assert "5 changed, 0 new, 0 gone, 1 equal" in text
    assert "shared.model.empty" in checkpoint("diff", f"{run}@1", "@2", "--all").stdout


def test_fsck_returns_3_until_it_is_repaired(place: str) -> None:  # noqa: F811
    commit = save(place, range(1, 4)).at(2)
    assert checkpoint("fsck", place).exit_code == 0
    corrupt(place, commit.parts[0].name)
    damaged = checkpoint("fsck", place)
    assert damaged.exit_code == 3
    assert "DAMAGED; whole snapshots of updates: 1, 3" in damaged.stdout
    assert "the snapshot of update 2" in damaged.stdout
    assert checkpoint("fsck", place, "--json").exit_code == 3
    repaired = checkpoint("fsck", place, "--repair")
    assert repaired.exit_code == 0
    assert commit.name in repaired.stdout
    assert told("fsck", place)["sound"]


def test_a_run_that_is_being_trained_is_not_repaired(run: str, tmp_path: Path) -> None:
    from gradwire.trainer.launch.claim import hold

    release = hold(tmp_path / "runs" / run)
    refused = checkpoint("fsck", run, "--repair")
    release()
    assert refused.exit_code == 2
    assert "being trained by another process" in refused.stderr


def test_a_fork_of_a_run_is_a_run(run: str, tmp_path: Path) -> None:
    forked = checkpoint("fork", f"{run}@2", "runs/calm")
    assert forked.exit_code == 0, forked.stderr
    assert "runs/calm begins at update 2" in forked.stdout
    assert "gradwire resume runs/calm" in forked.stdout
    assert told("log", "calm")["updates"] == [2]
    config = yaml.safe_load((tmp_path / "runs/calm/config.yaml").read_text())
    assert (config["run"]["dir"], config["run"]["name"]) == ("runs/calm", "spiky")
    assert (tmp_path / "runs/calm/overrides.txt").read_text() == "optimizer.lr=1\n"
    again = checkpoint("fork", f"{run}@2", "runs/calm")
    assert again.exit_code == 2
    assert "already holds a run" in again.stderr


def test_a_fork_to_a_url_is_a_store(run: str, tmp_path: Path) -> None:
    url = f"memory:/{tmp_path}/fork"
    assert told("fork", f"{run}@3", url)["update"] == 3
    assert same_state(Checkpointer(url).restore()[0], state_at(3))


def test_prune_keeps_what_the_run_says_or_what_is_asked_for(run: str, tmp_path: Path) -> None:
    for folder in ("parts", "packs"):
        for path in (tmp_path / "runs" / run / "checkpoints" / folder).iterdir():
            os.utime(path, (1, 1))  # older than any commit, as they are once the next one is written
    listed = checkpoint("prune", run, "--dry-run")
    assert listed.exit_code == 0
    assert "nothing asks to keep it" in listed.stdout
    assert "among the newest 2" in listed.stdout
    assert told("log", run)["updates"] == [1, 2, 3, 4]
    verdicts = told("prune", run, "--keep-last", "1", "--keep-best", "1", "--keep-every", "4", "--dry-run")
    assert sum(each["goes"] for each in verdicts if each["name"].startswith("commits/")) == 2
    assert checkpoint("prune", run).exit_code == 0
    assert told("log", run)["updates"] == [3, 4]
    assert told("fsck", run)["leftovers"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["log", "nothing"], 3, "No run 'nothing'"),
        (["log", "memory://nothing-here"], 3, "holds no snapshot"),
        (["show", "spiky@77"], 3, "no snapshot of update 77; it has updates: 1, 2, 3, 4"),
        (["log", "nosuch://place"], 2, "nosuch"),
        (["log"], 2, "URL-OR-RUN"),
        (["tag", "spiky@1", "no/slash"], 2, "cannot be a tag"),
        (["tag", "spiky", "--delete"], 2, "NAME"),
        (["prune", "spiky", "--keep-last", "0"], 2, "--keep-last"),
        (["fork", "spiky@1", "memory://a/../b"], 2, "'..'"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(run: str, arguments: list[str], code: int, message: str) -> None:
    refused = checkpoint(*arguments)
    assert (refused.exit_code, message in refused.stderr) == (code, True), refused.stderr
    assert "Traceback" not in refused.output


def test_a_damaged_snapshot_is_told_and_returns_3(run: str, tmp_path: Path) -> None:
    url = str(tmp_path / "runs" / run / "checkpoints")
    corrupt(url, Checkpointer(url).at(4).parts[0].name)
    for arguments in (["show", run], ["diff", f"{run}@3", "@4"], ["fork", run, "runs/other"]):
        refused = checkpoint(*arguments)
        assert (refused.exit_code, refused.stderr.count("\n")) == (3, 1)


def test_what_a_store_says_does_not_steer_the_terminal(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, writer="\x1b[31mred\nand more")
    checkpointer.save(state_at(1), {"updates": 1})
    for command in ("log", "show"):
        text = checkpoint(command, str(tmp_path)).stdout
        assert "\x1b" not in text
        assert "�[31mred�and more" in text


def test_help_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom gradwire.trainer.cli import app\n"
        "CliRunner().invoke(app, ['checkpoint', '--help'])\nprint(*{'torch', 'rich', 'fsspec'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "\n"
