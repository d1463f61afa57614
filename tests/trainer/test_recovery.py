"""Going on from a journal that does not fit any more: the snapshot is taken, or what was asked for is refused."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from gradwire.checkpoint import Checkpointer, State
from gradwire.checkpoint.journal import Entry
from gradwire.checkpoint.recovery import Recovery
from gradwire.comm import AllReduce
from gradwire.schedulers import Plan
from gradwire.trainer import Settings, Trainer
from gradwire.trainer.errors import ReplayError, StateMismatchError
from gradwire.trainer.optimizers import Group, build_optimizer
from gradwire.trainer.recovery import recover
from gradwire.trainer.state import capture
from gradwire.trainer.strategies import DataParallel

UPDATES = 10
FIRST = (Group("0.weight", lr=0.001),)


class Points(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.randn(3, generator=torch.Generator().manual_seed(index))}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    result: Tensor = (model(batch["x"]) - 1).square().mean(1)
    return result


def network(buffer: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    if buffer:
        model.register_buffer("cache", torch.zeros(2), persistent=False)
    return model


def make(
    folder: Path,
    groups: Sequence[Group] = FIRST,
    weight_decay: float = 0.01,
    buffer: bool = False,
    **settings: Any,
) -> tuple[Trainer, Checkpointer]:
    store = Checkpointer(folder, group=dist.group.WORLD)
    trainer = Trainer(
        network(buffer),
        Points(),
        lambda model: build_optimizer(torch.optim.AdamW, model, 0.05, weight_decay, groups),
        Plan(lr=0.05, batch=8, run_length=f"{UPDATES} updates"),
        loss=loss,
        settings=Settings(journal="update", **settings),
        strategy=DataParallel(AllReduce(), torch.device("cpu"), recorded=True),
        checkpointer=store,
    )
    return trainer, store


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(  # type: ignore[attr-defined]
        str(tmp_path_factory.mktemp("meeting") / "store"), 1
    )
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def killed(tmp_path: Path) -> Trainer:
    """A run whose updates are all journalled after the snapshot of update 0."""
    trainer, _ = make(tmp_path)
    assert trainer.keeping is not None
    trainer.keeping.finish = lambda status: trainer.keeping.journal.close()  # type: ignore[union-attr, method-assign]
    trainer.fit()
    return trainer


def damage(folder: Path, update: int) -> None:
    (entry,) = folder.glob(f"journal/*/*/*{update:04d}-0-of-1")
    data = bytearray(entry.read_bytes())
    data[-40] ^= 1
    entry.write_bytes(data)


def test_a_journal_that_fits_leads_to_the_same_weights(killed: Trainer, tmp_path: Path) -> None:
    trainer, store = make(tmp_path)
    recover(trainer, store, "latest")
    assert trainer.clock.updates == UPDATES
    assert torch.equal(weights(trainer), weights(killed))


def test_an_update_behind_damage_is_refused_and_nothing_is_begun(killed: Trainer, tmp_path: Path) -> None:
    damage(tmp_path, 5)
    before = sorted(tmp_path.rglob("*"))
    trainer, store = make(tmp_path)
    with pytest.raises(ReplayError, match=r"8 cannot be reached: .* up to update 4 only.*RUN@4") as found:
        recover(trainer, store, "8")
    assert found.value.exit_code == 3
    assert sorted(tmp_path.rglob("*")) == before
    again, store = make(tmp_path)
    recover(again, store, "4")
    assert again.clock.updates == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"groups": (Group("1.weight", lr=0.001),)}, "groups hold other parameters than at update 1"),
        ({"groups": (*FIRST, Group("1.weight", lr=0.01))}, "groups hold other parameters than at update 1"),
        ({"weight_decay": 0.0}, "groups hold other parameters than at update 1"),
        ({"buffer": True}, "another version or another model .*buffer/cache"),
    ],
    ids=["parameters of groups swapped", "one group more", "one group fewer", "one buffer more"],
)
def test_what_was_journalled_for_other_groups_or_buffers_is_not_replayed(
    killed: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], message: str
) -> None:
    trainer, store = make(tmp_path, **changed)
    with pytest.raises(ReplayError, match=message):
        recover(trainer, store, "8")
    trainer, store = make(tmp_path, **changed)
    start = weights(trainer)
    with caplog.at_level(logging.WARNING, "gradwire"):
        recover(trainer, store, "latest")
    assert "goes on from the snapshot of update 0 instead" in caplog.text
    assert trainer.clock.updates == 0
    assert torch.equal(weights(trainer), start)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(name, None) for name in ("members", "groups", "targets", "kept", "optimizer", "presence", "progress")],
        ("members", "0" * 32),
        ("groups", "[]"),
        ("groups", '[{"params": []}, {}, {}]'),
        ("groups", "odd"),
        ("divisor", "odd"),
        ("presence", "odd"),
        ("progress", "[]"),
    ],
)
def test_an_entry_of_another_version_is_not_replayed(
    killed: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: str | None
) -> None:
    def altered(self: Recovery, last: int | None = None) -> Iterator[tuple[int, list[Entry]]]:
        for update, (entry,) in entries(self, last):
            scalars = {name: held for name, held in entry.scalars.items() if name != field}
            yield update, [replace(entry, scalars=scalars if value is None else {**scalars, field: value})]

    entries = Recovery.entries
    monkeypatch.setattr(Recovery, "entries", altered)
    trainer, store = make(tmp_path)
    with pytest.raises(ReplayError):
        recover(trainer, store, "8")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("model", 5),
        ("optimizer", [1]),
        ("clock", 3),
        ("clock", {"samples": "x", "tokens": 1, "updates": 1}),
        ("decisions", [{"x": 1}]),
        ("noise_scale", 7),
        ("optimizer", {"0.weight": {"exp_avg": "text"}}),
    ],
)
def test_a_state_with_other_things_in_its_places_is_a_mismatch(tmp_path: Path, part: str, value: Any) -> None:
    trainer, _ = make(tmp_path)
    state = capture(trainer)
    with pytest.raises(StateMismatchError, match="another version wrote the snapshot"):
        trainer.restore(State({**state.shared, part: value}, state.local))


def test_weights_of_another_dtype_are_not_taken_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, _ = make(tmp_path)
    state = capture(trainer)

    def of(dtype: torch.dtype) -> State:
        return State({**state.shared, "model": {k: v.to(dtype) for k, v in state.shared["model"].items()}}, state.local)

    with pytest.raises(StateMismatchError, match=r"0.weight is torch.int32 there and torch.float32 here"):
        trainer.restore(of(torch.int32))
    with caplog.at_level(logging.WARNING, "gradwire"):
        trainer.restore(of(torch.bfloat16))
    assert (
        "6 tensors are converted from another precision: 0.weight from torch.bfloat16 to torch.float32" in caplog.text
    )


def test_a_moving_average_is_not_dropped_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer, _ = make(tmp_path, ema=0.9)
    state = capture(trainer)
    plain, _ = make(tmp_path)
    with caplog.at_level(logging.WARNING, "gradwire"):
        plain.restore(state)
    assert "the moving average of update 0 is dropped: ema is null" in caplog.text
