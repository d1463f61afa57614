"""Runs whose snapshots wait near on their way to the last store: killed, and resumed from there."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from benchmarks.comparison import differences, final_state, losses
from benchmarks.exact_resume import Campaign
from benchmarks.exact_resume_cases import Case
from benchmarks.runs import lines, resume, train_until
from gradwire.checkpoint import Checkpointer, Policy, StoreUnavailable
from gradwire.checkpoint.memory import folder_for
from gradwire.schedulers import Duration, Plan
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.recovery import recover
from tests.checkpoint.states import same, state_at
from tests.checkpoint.test_tiers import failing, held
from tests.trainer.commands import gradwire


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(3)}


class Crash(Callback):
    """From update 5 on nothing gets to a store, and after update 11 the run ends."""

    def __init__(self, far: Path) -> None:
        self._gone: Any = failing(far, StoreUnavailable("gone"))

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        if trainer.clock.updates == 5:
            self._gone.__enter__()
        if trainer.clock.updates == 11:
            if trainer.keeping is not None and trainer.keeping.saving is not None:
                trainer.keeping.saving.wait()
            self._gone.__exit__(None, None, None)
            raise KeyError("crashed")


def _run(folder: Path, *tiers: Path, **callbacks: Callback) -> tuple[Trainer, Checkpointer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    checkpointer = Checkpointer(folder, tiers=tiers, policy=Policy("warn", failures=9))
    plan = Plan(lr=0.1, batch=8, run_length="20 updates")
    trainer = Trainer(
        model,
        Points(),
        torch.optim.Adam(model.parameters()),
        plan,
        loss=lambda model, batch: model(batch["x"]).square().mean(1),
        settings=Settings(save_every=Duration.parse("3 updates")),
        checkpointer=checkpointer,
        callbacks=callbacks,
    )
    return trainer, checkpointer


def test_a_run_goes_on_from_the_nearest_snapshot_and_ends_in_the_last_tier(tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    _run(tmp_path / "whole")[0].fit()
    crashing, _ = _run(far, near, crash=Crash(far))
    with pytest.raises(KeyError, match="crashed"):
        crashing.fit()
    resumed, checkpointer = _run(far, near)
    recover(resumed, checkpointer, "latest")
    assert resumed.clock.updates == held(near)[-1] == 9
    assert resumed.fit().status == "done"
    assert checkpointer.durable == Checkpointer(far).latest()
    (whole, _), (state, commit) = Checkpointer(tmp_path / "whole").restore(), Checkpointer(far).restore()
    assert (commit.update, commit.reason) == (20, "end")
    for name in ("model", "optimizer"):
        assert same(whole.shared[name], state.shared[name])


def test_a_forked_run_has_no_tier_of_the_other(tmp_path: Path) -> None:
    run, forked, near = tmp_path / "run", tmp_path / "forked", tmp_path / "near"
    for update in (1, 2):
        Checkpointer(run / "checkpoints", tiers=[near]).save(state_at(update), {"updates": update})
    settings = {"run": {"dir": str(run)}, "checkpoint": {"url": None, "tiers": ["memory", str(near)]}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert gradwire("checkpoint", "fork", f"{run}@2", str(forked)).returncode == 0
    assert yaml.safe_load((forked / "config.yaml").read_text())["checkpoint"] == {"url": None, "tiers": ["memory"]}


@dataclass(frozen=True)
class Tiered(Case):
    """A run with snapshots in memory every third update."""

    def overrides(self) -> list[str]:
        rest = [each for each in super().overrides() if not each.startswith("checkpoint.every")]
        return [*rest, "checkpoint=tiered", "checkpoint.every=3 updates"]


@pytest.mark.slow
def test_a_killed_run_goes_on_from_memory_and_ends_in_the_same_bits(campaign: Campaign, tmp_path: Path) -> None:
    plain = Case("decoder", "bf16", 2, 1, "SIGKILL")
    reference, run = campaign.undisturbed(plain), tmp_path / "run"
    near, far = folder_for(str(run / "checkpoints")), run / "checkpoints"
    train_until(run, Tiered("decoder", "bf16", 2, 1, "SIGKILL").overrides(), 11, "SIGKILL")
    try:
        (saved,) = [commit.update for commit in Checkpointer(near).commits()][-1:]
        assert saved >= 6
        shutil.rmtree(far / "packs")  # what is not in memory cannot be restored any more
        told = json.loads(gradwire("checkpoint", "log", str(run), "--json").stdout)
        assert str(near) in next(each for each in told["tiers"] if each["update"] == saved)["in"]
        assert str(near) in gradwire("checkpoint", "log", str(run)).stdout
        output = resume(run)
        assert f"continuing from update {saved}" in output
        assert not near.exists(), "the memory is freed at the end"
    finally:
        shutil.rmtree(near, ignore_errors=True)
    assert differences(final_state(reference), final_state(run)) == []
    assert losses(reference) == losses(run)
    assert lines(run)[-1]["checkpoint/update"] > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["checkpoint.tiers=[memory]", "launch.hosts=2", "launch.endpoint=a:1"], "another place on each of 2 hosts"),
        (["checkpoint.tiers=[/a, /a]"], "/a is named twice"),
        (["checkpoint.tiers=[/a]", "checkpoint.url=/a"], "/a is named twice"),
    ],
)
def test_tiers_that_cannot_be_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"checkpoint\.tiers.*{message}"):
        validate(compose(overrides))
