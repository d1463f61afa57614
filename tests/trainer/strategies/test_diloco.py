"""DiLoCo on real ranks: what the paper's loop makes of it, written plainly, and what it costs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.comm import ReplicaMismatch, Topology
from gradwire.trainer import Trainer
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.errors import NonFiniteError, StrategyError
from tests.trainer.strategies.diloco_problem import (
    Loss,
    Way,
    check_replicas,
    data_parallel,
    flat,
    outer_of,
    records_of,
    reference,
    trainer_of,
)
from tests.trainer.strategies.documented import train_documented

TWO_HOSTS = Topology(node=2)
TWO_BY_TWO = Topology(local=2, node=2)
STREAMING = Way(fragments=2, overlap=1, updates=22)  # one is under way after the last update
WAYS = {
    "diloco": Way(),
    "streaming": STREAMING,
    "streaming, without mixing": replace(STREAMING, mix=0.0, updates=20),
    "local SGD": Way(every=3, outer_lr=1.0, outer_momentum=0.0, optimizer="SGD", updates=19),
}


class LastUpdate(Callback):
    """What a rank holds after the last update: outer parameters and own ones, before what concludes the run."""

    def __init__(self) -> None:
        self.outer = self.own = torch.empty(0)

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        self.outer, self.own = outer_of(trainer).clone(), flat(trainer.model.parameters())


def _reference(rank: int, topology: Topology) -> None:
    hosts = topology.axes["node"]
    for name, way in WAYS.items():
        seen = LastUpdate()
        trainer = trainer_of(way, topology, callbacks={"seen": seen})
        trainer.fit()
        outer, own = reference(way, hosts, topology.size // hosts)
        host = rank // (topology.size // hosts)
        assert torch.allclose(seen.outer, outer, rtol=1e-10, atol=1e-12), name
        assert torch.allclose(seen.own, own[host], rtol=1e-10, atol=1e-12), name
        if len(own) > 1 and way.updates % way.every != 0:
            assert not torch.equal(own[0], own[1]), name


def _concludes(rank: int) -> None:
    """Three hosts of one rank."""
    for way in (Way(every=4, updates=6), Way(every=4, fragments=2, overlap=1, updates=6)):
        trainer = trainer_of(way, Topology(node=3))
        trainer.fit()
        assert torch.equal(flat(trainer.model.parameters()), outer_of(trainer))
        check_replicas(trainer)
        everyone = trainer.strategy.gather(flat(trainer.model.parameters()))
        assert all(torch.equal(each, everyone[0]) for each in everyone)


def test_after_the_last_update_all_hosts_hold_the_outer_parameters(ranks: Callable[..., None]) -> None:
    ranks(3, _concludes)


def _every_update(rank: int) -> None:
    way = Way(every=1, outer_lr=1.0, outer_momentum=0.0, optimizer="SGD")
    apart, together = trainer_of(way, TWO_BY_TWO), data_parallel(way, TWO_BY_TWO)
    apart.fit()
    together.fit()
    assert torch.allclose(flat(apart.model.parameters()), flat(together.model.parameters()), rtol=1e-12, atol=1e-13)
    for update, record in records_of(together).items():
        assert records_of(apart)[update]["train/loss"] == pytest.approx(record["train/loss"], rel=1e-12)


def _arithmetic(rank: int) -> None:
    _reference(rank, TWO_BY_TWO)
    _every_update(rank)


def test_hosts_of_one_rank_do_what_the_plain_loop_does(ranks: Callable[..., None]) -> None:
    ranks(2, _reference, TWO_HOSTS)


def test_hosts_of_two_ranks_do_too_and_at_every_update_local_sgd_is_data_parallelism(
    ranks: Callable[..., None],
) -> None:
    ranks(4, _arithmetic)


def _codecs(rank: int) -> None:
    """What is compressed is bit-identical everywhere, its error is told, and losses fall."""
    exact = trainer_of(Way(dtype=torch.float32), TWO_BY_TWO)
    exact.fit()
    for codec in ("int8", "int4"):
        for way in (Way(codec=codec, dtype=torch.float32), replace(STREAMING, codec=codec, dtype=torch.float32)):
            trainer = trainer_of(way, TWO_BY_TWO)
            trainer.fit()
            check_replicas(trainer)
            losses = [record["train/loss"] for record in records_of(trainer).values()]
            assert losses[-1] < losses[0], codec
            assert any(record.get("comm/node/error", 0.0) > 0 for record in records_of(trainer).values())
            assert not torch.equal(outer_of(trainer), outer_of(exact))


def sent(trainer: Trainer) -> float:
    """Bytes that this rank sent between hosts in the whole run."""
    return sum(record.get("comm/node/bytes", 0.0) for record in records_of(trainer).values())


def _bytes(rank: int) -> None:
    way = Way(every=10, updates=80, dtype=torch.float32)
    together = data_parallel(way, TWO_BY_TWO)
    together.fit()
    for apart in (way, replace(way, fragments=2, overlap=2)):
        trainer = trainer_of(apart, TWO_BY_TWO)
        trainer.fit()
        assert sent(together) / sent(trainer) >= 0.9 * way.every


def _traffic(rank: int) -> None:
    _bytes(rank)
    _codecs(rank)


def test_hosts_send_a_share_of_the_bytes_and_compress_these_too(ranks: Callable[..., None]) -> None:
    ranks(4, _traffic)


def _evaluates(rank: int) -> None:
    trainer = trainer_of(Way(updates=6), TWO_HOSTS)
    checked = CheckEvaluation()
    trainer.callbacks["check"] = checked
    trainer.fit()
    assert checked.done == [1, 2, 3, 4, 5, 6]


class CheckEvaluation(Callback):
    """What is evaluated are the outer parameters and the first host's buffers; afterwards all is as before."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        outer, own = outer_of(trainer).clone(), flat(trainer.model.parameters())
        (buffer,) = trainer.model.buffers()
        before = buffer.clone()
        first = trainer.strategy.gather(before)[0]
        with trainer.strategy.evaluating():
            trainer.strategy.synchronize_buffers(trainer.model)
            assert torch.equal(flat(trainer.model.parameters()), outer)
            assert torch.equal(buffer, first)
        assert torch.equal(flat(trainer.model.parameters()), own)
        assert torch.equal(buffer, before)
        self.done.append(trainer.clock.updates)


def test_the_outer_parameters_are_evaluated(ranks: Callable[..., None]) -> None:
    ranks(2, _evaluates)


class Poison(Callback):
    def __init__(self, at: int, on: bool) -> None:
        self._at, self._on = at, on

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        assert isinstance(trainer.loss, Loss)
        trainer.loss.poisoned = self._on and trainer.clock.updates == self._at


def _poisoned(rank: int) -> None:
    """On the second host alone: it leaves the update out, the first does not, and both go on together."""
    for codec in ("none", "int8"):
        way = Way(updates=24, codec=codec, dtype=torch.float32)
        trainer = trainer_of(
            way, TWO_BY_TWO, callbacks={"poison": Poison(9, rank == 2)}, settings={"non_finite": "skip"}
        )
        trainer.fit()
        assert trainer.clock.skipped == (1 if rank > 1 else 0)
        check_replicas(trainer)
        assert outer_of(trainer).isfinite().all()


def _raises(rank: int) -> None:
    trainer = trainer_of(Way(), TWO_BY_TWO)
    assert isinstance(trainer.loss, Loss)
    trainer.loss.poisoned = rank == 2
    batch = next(iter(trainer._feed(8)))
    if rank > 1:
        with pytest.raises(NonFiniteError, match=r"loss is not finite on rank 2;"):
            trainer.updater.run(batch, 0)
    else:  # the other host has nothing to refuse
        trainer.updater.run(batch, 0)
    trainer.strategy.drain()


def _mismatch(rank: int) -> None:
    trainer = trainer_of(Way(), TWO_BY_TWO)
    trainer.fit()
    parameter = next(trainer.model.parameters())
    with torch.no_grad():
        parameter.add_(1.0 if rank > 1 else 0.0)
    check_replicas(trainer)  # hosts may differ
    with torch.no_grad():
        parameter.add_(1.0 if rank == 3 else 0.0)
    if rank > 1:
        with pytest.raises(ReplicaMismatch, match=r"first\.weight has other bits"):
            check_replicas(trainer)
    else:
        check_replicas(trainer)


def _one_host_alone(rank: int) -> None:
    _poisoned(rank)
    _raises(rank)
    _mismatch(rank)


def test_a_host_leaves_out_its_own_gradient_with_nan_and_only_what_must_be_equal_is_compared(
    ranks: Callable[..., None],
) -> None:
    ranks(4, _one_host_alone)


def _refused(rank: int) -> None:
    for settings, words in (({"precision": "fp16"}, "loss scale"), ({"ema": 0.9}, "moving average")):
        with pytest.raises(StrategyError, match=words):
            trainer_of(Way(dtype=torch.float32), TWO_HOSTS, settings=settings)
    with pytest.raises(StrategyError, match="6 parts"):
        trainer_of(Way(every=20, fragments=20), TWO_HOSTS)


def test_what_a_trainer_cannot_do_apart_is_refused(ranks: Callable[..., None]) -> None:
    ranks(2, _refused)


def test_the_commands_of_the_page_train(ranks: Callable[..., None], tmp_path: Path) -> None:
    ranks(4, train_documented, str(tmp_path), "diloco", "comm.topology={local: 2, node: 2}")
