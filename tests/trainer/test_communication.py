"""Training over every topology and through codecs: the same bits everywhere, nothing lost, nothing poisoned."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.strategy_runs import Losses
from gradwire.checkpoint import Checkpointer, State
from gradwire.comm import AllReduce, Topology
from gradwire.comm.codecs import Codec, Int4, TopK
from gradwire.comm.telemetry import Traffic
from gradwire.schedulers import Clock, Duration, Plan
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.assemble import build_strategy
from gradwire.trainer.communication import EVERY, Communication
from gradwire.trainer.config import compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.data import Feed, SampleStream, UpdateBatch
from gradwire.trainer.precision import Precision
from gradwire.trainer.recovery import read
from gradwire.trainer.strategies import Cost, DataParallel, Single, Strategy
from gradwire.trainer.update import Updater

CPU = torch.device("cpu")
UPDATES = 24


class Points(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A linear problem with noise."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.randn(6)
        return {"x": x, "y": x.sum().reshape(1) + torch.randn(1)}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 512), nn.Tanh(), nn.Linear(512, 1))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = (model(batch["x"]) - batch["y"]).square().mean(1)
    return loss


def trainer_on(strategy: DataParallel, store: Checkpointer | None = None, **settings: Any) -> tuple[Trainer, Losses]:
    model, records = network(), Losses()
    trainer = Trainer(
        model,
        Points(),
        torch.optim.SGD(model.parameters(), momentum=0.9),
        Plan(lr=0.01, batch=64, run_length=f"{UPDATES} updates"),
        loss=loss_of,
        settings=Settings(**{"log_every": 4, "check_replicas_every": Duration(4, "updates"), **settings}),
        checkpointer=store,
        callbacks={"records": records},
        strategy=strategy,
    )
    return trainer, records


def strategy_of(codecs: Mapping[str, Codec | str], **axes: int) -> DataParallel:
    topology = Topology(**axes) if axes else None
    return DataParallel(AllReduce(topology, "two_shot", codecs), CPU)


def configured(*overrides: str) -> DataParallel:
    """The strategy of a real configuration for two ranks."""
    machine = Machine(gpus=0, processes=2, world_size=2)
    composed = compose(["launch.processes=2", "launch.device=cpu", *overrides])
    config = validate(composed, lambda config, allow: contradictions(config, allow, machine)).config
    context: Any = SimpleNamespace(world_size=2, device=CPU, control=None)
    strategy = build_strategy(config, context)
    assert isinstance(strategy, DataParallel)
    return strategy


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


GROUPS = {
    "ring": ["comm=ring"],
    "hierarchical": ["comm=hierarchical", "comm.topology={local: 1, node: 2}"],
    "torus": ["comm=torus", "comm.topology={x: 2, y: 1}", "comm.segment_mb=0.001"],
}
AXES = {"ring": "ring", "hierarchical": "node", "torus": "x"}


def _train_by_every_group(rank: int) -> None:
    native, records = trainer_on(configured("comm=native"))
    native.fit()
    loss = records.of[UPDATES]["train/loss"]
    assert records.of[UPDATES]["comm/exposed_ms"] > 0
    assert not [key for key in records.of[UPDATES] if key.startswith("comm/") and key != "comm/exposed_ms"]
    for name, overrides in GROUPS.items():
        trainer, records = trainer_on(configured(*overrides))
        trainer.fit()
        last = records.of[UPDATES]
        assert torch.equal(weights(trainer), weights(native)), name  # the sum of two numbers has one value only
        elements = sum(parameter.numel() for parameter in trainer.model.parameters())
        assert last[f"comm/{AXES[name]}/bytes"] == pytest.approx(4 * elements, rel=0.02)
        assert not {f"comm/{AXES[name]}/error", f"comm/{AXES[name]}/uncompressed_bytes"} & last.keys()
        assert last["time/update_ms"] > last["time/data_ms"] + last["comm/exposed_ms"] > 0
    chosen = ["comm/codec@comm.codecs.node=int8", "comm.codecs.node.block=64"]
    trainer, records = trainer_on(configured(*GROUPS["hierarchical"], *chosen))
    trainer.fit()
    last = records.of[UPDATES]
    assert last["comm/node/bytes"] < 0.3 * 4 * elements
    assert last["comm/node/uncompressed_bytes"] == pytest.approx(4 * elements, rel=0.02)
    assert 0 < last["comm/node/error"] < 0.02
    assert last["comm/node/encode_ms"] > 0
    assert last["comm/node/decode_ms"] > 0
    assert last["train/loss"] == pytest.approx(loss, rel=0.02)


def test_two_ranks_train_by_every_group_and_log_what_it_costs(ranks: Callable[..., None]) -> None:
    ranks(2, _train_by_every_group)


class Poisonable:
    """The loss, which is NaN where it is told to be."""

    def __init__(self) -> None:
        self.poisoned = False

    def count(self, batch: Mapping[str, Tensor]) -> int:
        return len(batch["x"])

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch).sum() * (float("nan") if self.poisoned else 1.0)


def two_updates(
    codec: Codec, name: Literal["fp32", "fp16"], batches: Sequence[UpdateBatch], *, poison: bool
) -> tuple[list[Tensor], Mapping[str, Any], float]:
    """Weights, residuals and loss scale after two updates, with one on NaN between them if asked for."""
    strategy, loss = strategy_of({"ring": codec}), Poisonable()
    model = strategy.prepare(network())
    precision = Precision(name, CPU)
    if precision.scaler is not None:
        precision.scaler = torch.amp.GradScaler("cpu", init_scale=8192.0)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    updater = Updater(model, loss, optimizer, strategy, precision, non_finite="skip")
    assert not updater.run(batches[0], 0).skipped
    if poison:
        loss.poisoned = strategy.rank == 1
        assert updater.run(batches[1], 1).skipped  # on the other rank too
        loss.poisoned = False
    assert not updater.run(batches[1], 1).skipped
    state = strategy.state_dict()["residuals"]["ring"]
    residuals = {parameter: saved["values"] for parameter, saved in state.items()}
    return [parameter.detach() for parameter in model.parameters()], residuals, precision.scale


def _survive_nan(rank: int) -> None:
    plan = Plan(lr=0.01, batch=16, run_length="2 updates")
    feed = Feed(SampleStream(Points()), plan, Clock(), rank=rank, world_size=2, micro=8)
    batches = list(feed)
    codecs: list[Codec] = [Int4(), TopK(ratio=0.25)]
    for codec in codecs:
        for precision in ("fp32", "fp16"):
            plain, lost, scale = two_updates(codec, precision, batches, poison=False)  # type: ignore[arg-type]
            poisoned, also_lost, lowered = two_updates(codec, precision, batches, poison=True)  # type: ignore[arg-type]
            assert lowered == (scale / 2 if precision == "fp16" else 1.0)
            for mine, theirs in zip(poisoned, plain, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
            for name, residual in lost.items():
                exact = (
                    0.0 if precision == "fp32" else 1e-5
                )  # of the scale's half, fp16 can round tiny gradients otherwise
                torch.testing.assert_close(also_lost[name] * (scale / lowered), residual, rtol=exact, atol=exact)
            assert any(residual.any() for residual in lost.values())


def test_a_batch_of_nan_is_skipped_on_every_rank_and_the_next_update_is_as_without_it(
    ranks: Callable[..., None],
) -> None:
    ranks(2, _survive_nan)


class Coarse(Int4):
    """int4 that is said to be exact to a hundredth."""

    tolerance: ClassVar[float | None] = 0.01


def _fall_back(rank: int, folder: str) -> None:
    store = Checkpointer(folder, keep_last=9, group=dist.group.WORLD)
    warned = Warnings()
    logging.getLogger("gradwire").addHandler(warned)
    whole, records = trainer_on(strategy_of({"ring": Coarse()}), store, save_every=Duration(6, "updates"))
    whole.fit()
    (decision,) = whole.decisions.of("codec/ring")
    assert (decision.update, decision.value) == (EVERY, "bf16")
    found = re.fullmatch(r"relative error (\S+) at update 9, past 0.01", decision.reason)
    assert found is not None
    assert 0.05 < float(found[1]) < 0.25
    assert len([line for line in warned.lines if "too coarse" in line]) == 1
    assert records.of[4]["comm/ring/bytes"] < 0.3 * records.of[16]["comm/ring/bytes"]
    assert records.of[16]["comm/ring/error"] < 0.01
    for update in (6, 12, 18):  # before the decision, and after it
        restored, _ = read(Checkpointer(folder, group=dist.group.WORLD), update)
        again, _ = trainer_on(strategy_of({"ring": Coarse()}))
        again.restore(restored.state, restored.everyone, moved=restored.moved)
        again.fit()
        assert again.decisions.state_dict() == whole.decisions.state_dict()
        assert torch.equal(weights(again), weights(whole))


class Warnings(logging.Handler):
    def __init__(self, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_a_codec_that_is_too_coarse_gives_way_to_bf16_and_a_resumed_run_repeats_it(
    ranks: Callable[..., None], tmp_path: Path
) -> None:
    ranks(2, _fall_back, str(tmp_path / "store"))


def total(states: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Per parameter the sum over all ranks of what is carried over."""
    found: Counter[str] = Counter()
    for state in states:
        for parts in state["residuals"].values():
            for name, saved in parts.items():
                found[name] += saved["values"].double().sum().item()
    return dict(found)


def states_of(strategy: Strategy) -> list[Any]:
    states: list[Any] = [None] * strategy.world_size
    dist.all_gather_object(states, strategy.state_dict())
    return states


def _begin_on_four(rank: int, folder: str) -> None:
    store = Checkpointer(folder, keep_last=9, group=dist.group.WORLD)
    strategy = strategy_of({"local": TopK(ratio=0.25), "node": Int4()}, local=2, node=2)
    trainer, records = trainer_on(strategy, store, save_every=Duration(8, "updates"))
    trainer.fit()
    if rank == 0:
        torch.save({update: record["train/loss"] for update, record in records.of.items()}, f"{folder}-losses")
    restored, _ = read(store, 8)
    saved = total(list(restored.everyone()))
    _goes_on(restored, strategy_of({"ring": Int4()}), saved, f"{folder}-losses")
    trainer, _ = trainer_on(strategy_of({"ring": Int4()}))
    trainer.restore(State(restored.state.shared))  # a snapshot from before there were codecs
    assert not any(total(states_of(trainer.strategy)).values())


def _continue_on_two(rank: int, folder: str) -> None:
    restored, _ = read(Checkpointer(folder, group=dist.group.WORLD), 8)
    assert restored.moved
    saved = total(list(restored.everyone()))
    _goes_on(restored, strategy_of({"ring": TopK(ratio=0.25)}), saved, f"{folder}-losses")
    trainer, _ = trainer_on(strategy_of({"ring": "int8"}))
    trainer.restore(restored.state, restored.everyone, moved=True)
    first = states_of(trainer.strategy)[0]
    owed = total([{"residuals": {"": first["arrears"]}}])
    for name, value in owed.items():
        assert value == pytest.approx(saved[name], rel=1e-4, abs=1e-6)


def _goes_on(restored: Any, strategy: DataParallel, saved: Mapping[str, float], losses: str) -> None:
    trainer, records = trainer_on(strategy)
    trainer.restore(restored.state, restored.everyone, moved=restored.moved)
    kept = total(states_of(strategy))
    assert kept.keys() == saved.keys()
    assert any(abs(value) > 1e-6 for value in saved.values())
    for name, value in saved.items():
        assert kept[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    trainer.fit()
    before = torch.load(losses)
    for update, record in records.of.items():
        assert record["train/loss"] == pytest.approx(before[update], rel=0.1), (before, records.of)
    assert trainer.clock.updates == UPDATES


def test_a_run_goes_on_with_other_axes_and_with_fewer_ranks(ranks: Callable[..., None], tmp_path: Path) -> None:
    ranks(4, _begin_on_four, str(tmp_path / "store"))
    ranks(2, _continue_on_two, str(tmp_path / "store"))


class Metered(Single):
    """Gives the traffic that it is given."""

    def __init__(self, costs: Sequence[Cost]) -> None:
        super().__init__(CPU)
        self.costs = list(costs)

    def cost(self) -> Cost:
        return self.costs.pop(0) if self.costs else Cost()

    def tolerances(self) -> Mapping[str, float]:
        return {"node": 0.1}


def traffic(error: float | None) -> Traffic:
    return Traffic(sent=1000, encoding=0.25, decoding=0.5, waiting=1.0, error=error, uncompressed=4000)


def test_metrics_are_means_of_the_updates_between_two_lines() -> None:
    costs = [Cost(exposed=0.5, axes={"local": traffic(None), "node": traffic(0.02)})]
    communication = Communication(Metered(costs))
    for update in range(5):
        communication.before(update)
        assert communication.after(update, skipped=False) == []
    found = communication.metrics()
    assert found["comm/exposed_ms"] == 100
    assert found["comm/node/bytes"] == 200
    assert found["comm/node/uncompressed_bytes"] == 800
    assert found["comm/node/encode_ms"] == 50
    assert found["comm/node/decode_ms"] == 100
    assert found["comm/node/wait_ms"] == 200
    assert found["comm/node/error"] == 0.02
    assert "comm/local/error" not in found
    assert communication.metrics() == {}


@pytest.mark.parametrize(
    ("error", "skipped", "found"),
    [(0.2, False, ["node"]), (0.05, False, []), (0.2, True, []), (None, False, []), (float("nan"), False, [])],
)
def test_what_is_decided_depends_on_one_update_alone(error: float | None, skipped: bool, found: list[str]) -> None:
    costs = [Cost(axes={"node": traffic(0.9)}), Cost(axes={"node": traffic(error)})]
    communication = Communication(Metered(costs))
    communication.before(EVERY - 1)
    assert [each.axis for each in communication.after(EVERY - 1, skipped=skipped)] == found
