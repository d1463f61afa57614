"""Runs of DiLoCo that stop and go on: in the same bits on the same hosts, from the outer parameters on others."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.checkpoint import Checkpointer
from gradwire.comm import Topology
from gradwire.schedulers import Duration
from gradwire.trainer import Trainer
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.recovery import read
from tests.trainer.strategies.diloco_problem import (
    Net,
    Way,
    check_replicas,
    data_parallel,
    flat,
    outer_of,
    records_of,
    trainer_of,
)

TWO_BY_TWO = Topology(local=2, node=2)
STREAMING = Way(fragments=2, overlap=1, updates=22, codec="int4", dtype=torch.float32, clip=1.0)
EVERY_UPDATE = {"save_every": Duration(1, "updates")}


def store_at(folder: str) -> Checkpointer:
    return Checkpointer(folder, keep_last=99, group=dist.group.WORLD)


def restore(trainer: Trainer, folder: str, update: int) -> Trainer:
    found, _ = read(Checkpointer(folder, group=dist.group.WORLD), update)
    trainer.restore(found.state, found.everyone, moved=found.moved)
    return trainer


def saved_model(folder: str, update: int) -> torch.Tensor:
    """The parameters that a snapshot holds as the model's."""
    found, _ = read(Checkpointer(folder, group=dist.group.WORLD), update)
    return flat(found.state.shared["model"][name] for name, _ in Net().named_parameters())


def bits(trainer: Trainer) -> list[torch.Tensor]:
    """What a rank holds: outer parameters, own ones, buffers, and the optimizer's state."""
    trainer.strategy.synchronize_buffers(trainer.model)  # as saving does
    state = [value for values in trainer.optimizer.state.values() for value in values.values()]
    return [outer_of(trainer).clone(), flat(trainer.model.parameters()), flat(trainer.model.buffers()), flat(state)]


def same(left: Trainer, right: Trainer) -> bool:
    return all(torch.equal(*pair) for pair in zip(bits(left), bits(right), strict=True))


class Heard(logging.Handler):
    """What is said to people."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        log = logging.getLogger("gradwire")
        log.setLevel(logging.INFO)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _resumes(rank: int, folder: str) -> None:
    whole = trainer_of(STREAMING, TWO_BY_TWO, store_at(folder), settings=EVERY_UPDATE)
    undisturbed = trainer_of(STREAMING, TWO_BY_TWO)
    whole.fit()
    undisturbed.fit()
    assert same(whole, undisturbed)  # saving changes nothing
    for update in (1, 4, 5, 21):  # under way after 4, not after 5
        again = restore(trainer_of(STREAMING, TWO_BY_TWO), folder, update)
        found, _ = read(Checkpointer(folder, group=dist.group.WORLD), update)
        assert (found.state.shared["outer"]["under_way"] is not None) == (update == 4)
        assert torch.equal(outer_of(again), saved_model(folder, update))
        again.fit()
        assert same(again, whole), update
        losses = {at: record["train/loss"] for at, record in records_of(again).items()}
        assert losses == {at: records_of(whole)[at]["train/loss"] for at in range(update + 1, 23)}


class Ask(Callback):
    def __init__(self, asked: list[bool], at: int) -> None:
        self._asked, self._at = asked, at

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        self._asked[0] = trainer.clock.updates >= self._at


def _stops(rank: int, folder: str) -> None:
    """Asked on the second host, after update 3: all hear of it in update 5, one later than under strategy=ddp."""
    asked = [False]
    stopped = trainer_of(
        STREAMING,
        TWO_BY_TWO,
        store_at(folder),
        stop_requested=lambda: asked[0] and rank == 3,
        callbacks={"ask": Ask(asked, 3)},
    )
    assert stopped.fit().status == "preempted"
    assert stopped.clock.updates == 5
    again, whole = restore(trainer_of(STREAMING, TWO_BY_TWO), folder, 5), trainer_of(STREAMING, TWO_BY_TWO)
    assert again.fit().status == whole.fit().status == "done"
    assert same(again, whole)


def _changes(rank: int, folder: str) -> None:
    """From a snapshot with a fragment under way: other settings, another strategy, and back."""
    heard = Heard()
    later = restore(trainer_of(replace(STREAMING, every=8), TWO_BY_TWO), folder, 4)
    assert torch.equal(outer_of(later), saved_model(folder, 4))
    assert not torch.equal(flat(later.model.parameters()), outer_of(later))  # each host its own, as they were
    assert not heard.lines
    other = restore(trainer_of(replace(STREAMING, fragments=1, overlap=0), TWO_BY_TWO), folder, 4)
    assert torch.equal(flat(other.model.parameters()), outer_of(other))
    assert not torch.equal(outer_of(other), outer_of(later))  # what was under way was applied
    assert any("all go on from the outer parameters" in line for line in heard.lines)
    other.fit()
    together = restore(data_parallel(STREAMING, TWO_BY_TWO), folder, 4)
    assert torch.equal(flat(together.model.parameters()), outer_of(later))
    assert any("trained by themselves" in line for line in heard.lines)
    together.fit()


def _begins(rank: int, folder: str) -> None:
    """What was begun as data parallelism goes on as DiLoCo."""
    way = replace(STREAMING, codec="none")
    data_parallel(way, TWO_BY_TWO, store_at(folder), settings=EVERY_UPDATE).fit()
    apart = restore(trainer_of(way, TWO_BY_TWO), folder, 6)
    parameters = saved_model(folder, 6)
    assert torch.equal(outer_of(apart), parameters)
    assert torch.equal(flat(apart.model.parameters()), parameters)
    result = apart.fit()
    assert result.clock.updates == 22
    check_replicas(apart)


def _everything(rank: int, resumed: str, stopped: str, begun: str) -> None:
    _resumes(rank, resumed)
    _changes(rank, resumed)
    _stops(rank, stopped)
    _begins(rank, begun)


def _moves(rank: int, folder: str) -> None:
    """On three hosts instead of two, from a snapshot with a fragment under way."""
    heard = Heard()
    again = restore(trainer_of(STREAMING, Topology(node=3)), folder, 4)
    assert torch.equal(flat(again.model.parameters()), outer_of(again))
    (line,) = [line for line in heard.lines if "outer parameters" in line]
    assert "of 2 hosts with 2 ranks each, and now there are 3 with 1" in line
    check_replicas(again)
    assert again.fit().clock.updates == 22
    losses = [record["train/loss"] for record in records_of(again).values()]
    assert losses[-1] < losses[0]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str, str]:
    return str(tmp_path / "resumed"), str(tmp_path / "stopped"), str(tmp_path / "begun")


def test_runs_go_on(ranks: Callable[..., None], folders: tuple[str, str, str]) -> None:
    ranks(4, _everything, *folders)
    ranks(3, _moves, folders[0])
