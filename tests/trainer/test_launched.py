"""What a trainer tells the controllers that started it, and asks of the store after a restart."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.checkpoint import Checkpointer, State, WriterFenced
from gradwire.trainer.launch.elastic import Change
from gradwire.trainer.launched import Launched, check_store_is_ours, writer_of


def context(launch: str | None, rank: int = 0) -> Any:
    return SimpleNamespace(launch=launch, rank=rank)


def test_hosts_whose_run_another_launch_has_taken_over_stop(tmp_path: Path) -> None:
    for update, launch in enumerate(("first", "second")):
        writer = Checkpointer(tmp_path / "store", writer=writer_of(launch))
        writer.save(State({"x": torch.zeros(1)}, {}), {"updates": update})
    store = Checkpointer(tmp_path / "store")
    with pytest.raises(WriterFenced, match=r"Another launch, .*second.*has taken this run over"):
        check_store_is_ours(store, context("first"))
    for sound in (context("second"), context("a new one"), context("first", rank=1), context(None)):
        check_store_is_ours(store, sound)


def test_an_empty_store_is_nobodys(tmp_path: Path) -> None:
    check_store_is_ours(Checkpointer(tmp_path / "store"), context("first"))


def test_a_change_of_hosts_is_reported_with_the_first_update_after_it(caplog: pytest.LogCaptureFixture) -> None:
    noted: list[dict[str, float]] = []
    clock, strategy = SimpleNamespace(updates=17), SimpleNamespace(world_size=2)
    trainer: Any = SimpleNamespace(clock=clock, strategy=strategy, note=noted.append)
    launched = Launched(lambda: None, Change(time.time() - 5, "Host a is lost.", 1, 2))
    with caplog.at_level(logging.INFO, logger="gradwire"):
        launched.on_update(trainer, None)  # type: ignore[arg-type]
        launched.on_update(trainer, None)  # type: ignore[arg-type]
    assert len(noted) == 1 and noted[0]["hosts"] == 1 and noted[0]["world_size"] == 2
    assert 5 <= noted[0]["restart/seconds"] < 30
    assert caplog.messages == [
        f"Host a is lost. Hosts: 2 before, 1 now. First new update, 17, after {noted[0]['restart/seconds']:.1f} s"
    ]
