"""Training with gradients that come one update late: the bits of a loop that delays by hand, resumed and moved."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.strategy_runs import Losses
from gradwire.checkpoint import Checkpointer
from gradwire.comm import AllReduce, Overlap
from gradwire.schedulers import Clock, Duration, Plan
from gradwire.schedulers.batch import LinearWarmup
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.assemble import build_strategy
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.data import Feed
from gradwire.trainer.errors import NonFiniteError, OverlapError
from gradwire.trainer.optimizers import set_step
from gradwire.trainer.recovery import read
from gradwire.trainer.strategies import DataParallel

CPU = torch.device("cpu")
SAMPLES = 240


class Points(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A linear problem with noise."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.randn(6)
        return {"x": x, "y": x.sum().reshape(1) + torch.randn(1)}


class Loss:
    """Counts samples with a positive target twice; NaN where it is told to be."""

    poisoned = False

    def count(self, batch: Mapping[str, Tensor]) -> int:
        return int((1 + (batch["y"] > 0)).sum())

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = ((model(batch["x"]) - batch["y"]).square() * (1 + (batch["y"] > 0))).sum()
        return loss * float("nan") if self.poisoned else loss

    def measures(self, model: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        return {"loss": self(model, batch)}


def trainer_of(codec: str, overlap: Overlap, store: Checkpointer | None = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
    all_reduce = AllReduce(algorithm="two_shot", codecs={} if codec == "none" else {"ring": codec})
    settings = Settings(
        log_every=1, clip=1.0, check_replicas_every=Duration(2, "updates"), **options.pop("settings", {})
    )
    return Trainer(
        model,
        Points(),
        torch.optim.AdamW(model.parameters()),
        Plan(lr=0.01, batch=24 * LinearWarmup("50%"), run_length=f"{SAMPLES} samples", granule=6),  # the batch grows
        loss=Loss(),
        strategy=DataParallel(all_reduce, CPU, overlap=overlap),
        settings=settings,
        checkpointer=store,
        callbacks={"records": Losses()},
        **options,
    )


def records_of(trainer: Trainer) -> dict[int, Mapping[str, Any]]:
    records = trainer.callbacks["records"]
    assert isinstance(records, Losses)
    return records.of


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def losses(trainer: Trainer) -> dict[int, float]:
    return {update: record["train/loss"] for update, record in records_of(trainer).items()}


def train_by_hand(trainer: Trainer, micro: int) -> None:
    """Every update applies the gradient that the one before computed, with what the trainer is made of."""
    aside: list[Tensor] = []
    parameters = list(trainer.model.parameters())
    rank, world_size = trainer.strategy.rank, trainer.strategy.world_size
    feed = Feed(trainer.stream, trainer.plan, Clock(), rank=rank, world_size=world_size, micro=micro)
    for update, batch in enumerate(feed):
        trainer.updater.differentiate(batch, update)
        late, aside = aside, [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
        set_step(trainer.optimizer, batch.step.lr, batch.step.betas, batch.step.eps)
        if late:
            for parameter, gradient in zip(parameters, late, strict=True):
                parameter.grad = gradient
            norm = torch.nn.utils.get_total_norm(late).item()
            if norm > 1.0:
                torch._foreach_mul_(late, 1.0 / norm)
            trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def _by_hand(rank: int) -> None:
    for codec in ("none", "int8", "int4"):
        late, hand = trainer_of(codec, "update", settings={"micro": 4}), trainer_of(codec, "backward")
        result = late.fit()
        train_by_hand(hand, 4)
        assert torch.equal(weights(late), weights(hand)), codec
        records = records_of(late)
        assert result.clock.samples == SAMPLES
        assert (result.clock.updates, result.clock.skipped) == (len(records), 0)
        assert records[1]["grad_norm"] == 0.0
        assert records[2]["grad_norm"] > 0.0
        assert late.optimizer.state_dict()["state"][0]["step"] == len(records) - 1
        at_once = trainer_of(codec, "backward", settings={"micro": 4})
        at_once.fit()
        assert losses(late)[1] == losses(at_once)[1]  # of the same weights and samples
        assert losses(late)[len(records)] < 0.5 * losses(late)[1]


def test_the_weights_are_those_of_a_loop_that_delays_gradients_by_hand(ranks: Callable[..., None]) -> None:
    ranks(2, _by_hand)


def restored(folder: str, update: int, codec: str, overlap: Overlap) -> Trainer:
    found, _ = read(Checkpointer(folder, group=dist.group.WORLD), update)
    trainer = trainer_of(codec, overlap)
    trainer.restore(found.state, found.everyone, moved=found.moved)
    return trainer


def _resumes(rank: int, folder: str) -> None:
    store = Checkpointer(folder, keep_last=99, group=dist.group.WORLD)
    whole, undisturbed = (
        trainer_of("int4", "update", store, settings={"save_every": Duration(1, "updates")}),
        trainer_of("int4", "update"),
    )
    whole.fit()
    undisturbed.fit()
    assert torch.equal(weights(whole), weights(undisturbed))  # saving changes nothing
    last = whole.clock.updates
    for update in (1, 5, last - 1):
        again = restored(folder, update, "int4", "update")
        again.fit()
        assert torch.equal(weights(again), weights(whole)), update
        assert losses(again) == {at: loss for at, loss in losses(whole).items() if at > update}


def _stops(rank: int, folder: str) -> None:
    asked = [False]
    store = Checkpointer(folder, keep_last=99, group=dist.group.WORLD)
    stopped = trainer_of("int4", "update", store, stop_requested=lambda: asked[0] and rank == 1)
    stopped.callbacks["ask"] = _Ask(asked, at=3)
    assert stopped.fit().status == "preempted"
    assert stopped.clock.updates == 5  # it is asked in update 4; the ranks hear of it in the one after
    again, whole = restored(folder, 5, "int4", "update"), trainer_of("int4", "update")
    assert again.fit().status == whole.fit().status == "done"
    assert torch.equal(weights(again), weights(whole))


class _Ask(Callback):
    def __init__(self, asked: list[bool], at: int) -> None:
        self._asked, self._at = asked, at

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        self._asked[0] = trainer.clock.updates >= self._at


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _changes(rank: int, folder: str) -> None:
    warned = Warnings()
    logging.getLogger("gradwire").addHandler(warned)
    at_once = restored(folder, 5, "int4", "backward")
    assert "the gradient that was under way at update 5 is dropped" in warned.lines[-1]
    at_once.fit()
    assert at_once.clock.samples == SAMPLES
    found, _ = read(Checkpointer(folder, group=dist.group.WORLD), 5)
    assert found.state.shared["in_flight"]["carried"][1:3] == [0, 0]
    assert "in_flight" not in found.state.local


def _interrupted(rank: int, resumed: str, stopped: str) -> None:
    _resumes(rank, resumed)
    _changes(rank, resumed)
    _stops(rank, stopped)


def _moves(rank: int, folder: str) -> None:
    """On three ranks instead of two the same gradients are applied, up to rounding."""
    again, plain = (restored(folder, 5, codec, "update") for codec in ("none", "none"))
    again.fit()
    plain.fit()
    assert torch.equal(weights(again), weights(plain))
    found, _ = read(Checkpointer(folder, group=dist.group.WORLD), 5)
    targets, divisor = found.state.shared["in_flight"]["carried"][::3]
    assert records_of(again)[6]["grad_norm"] == pytest.approx(
        torch.nn.utils.get_total_norm(found.state.shared["in_flight"]["gradients"].values()).item() * divisor / targets
    )


def test_a_run_that_was_interrupted_ends_in_the_same_bits(ranks: Callable[..., None], tmp_path: Path) -> None:
    ranks(2, _interrupted, str(tmp_path / "resumed"), str(tmp_path / "stopped"))
    ranks(3, _moves, str(tmp_path / "resumed"))


def _poisoned(rank: int) -> None:
    for policy in ("skip", "raise"):
        trainer = trainer_of("int4", "update", settings={"non_finite": policy})
        assert isinstance(trainer.loss, Loss)
        trainer.callbacks["poison"] = _Poison(trainer.loss, at=3, on=rank == 1)
        if policy == "raise":
            with pytest.raises(NonFiniteError, match=r"^update 4: .* of the update before"):
                trainer.fit()
            continue
        trainer.fit()
        assert trainer.clock.skipped == 1
        assert "skipped" not in records_of(trainer)[4]
        assert records_of(trainer)[5]["skipped"] == 1
        assert weights(trainer).isfinite().all()


class _Poison(Callback):
    def __init__(self, loss: Loss, at: int, *, on: bool) -> None:
        self._loss, self._at, self._on = loss, at, on

    def on_update(self, trainer: Trainer, outcome: Any) -> None:
        self._loss.poisoned = self._on and trainer.clock.updates == self._at


def test_a_gradient_with_nan_is_left_out_one_update_late(ranks: Callable[..., None]) -> None:
    ranks(2, _poisoned)


def _refused(rank: int) -> None:
    with pytest.raises(OverlapError, match="fp16"):
        trainer_of("none", "update", settings={"precision": "fp16"})


def test_what_needs_gradients_at_once_is_refused(ranks: Callable[..., None]) -> None:
    ranks(1, _refused)


def config_of(*overrides: str) -> dict[str, Any]:
    machine = Machine(gpus=0, processes=2, world_size=2)
    composed = compose(["launch.processes=2", "launch.device=cpu", *overrides])
    return validate(composed, lambda config, allow: contradictions(config, allow, machine)).config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("precision=fp16", "scale of the loss"),
        ("scaling=adascale", "measure the noise scale on, and scaling follows it"),
    ],
)
def test_a_configuration_that_needs_gradients_at_once_is_refused(override: str, words: str) -> None:
    required = ("scaling.reference=8",) if override.startswith("scaling") else ()
    assert config_of(override, *required)["comm"]["overlap"] == "backward"
    with pytest.raises(ConfigError) as caught:
        config_of(override, *required, "comm.overlap=update")
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.suggestion) == ("comm.overlap", "comm.overlap=backward")
    assert words in mistake.message


def _configured(rank: int) -> None:
    context: Any = SimpleNamespace(world_size=1, device=CPU, control=None)
    for overlap, late in (("update", True), ("backward", False)):
        config = config_of("comm=ring", f"comm.overlap={overlap}")
        assert build_strategy(config, context).late is late


def test_the_configuration_reaches_the_strategy(ranks: Callable[..., None]) -> None:
    ranks(1, _configured)
