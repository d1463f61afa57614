"""Sharded gradients are journalled: a run that broke off is replayed to the update that it had reached, bit for bit."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

from benchmarks.strategy_runs import Way, spawned, trainer_of
from gradwire.checkpoint import Checkpointer
from gradwire.schedulers import Duration
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.journaling import state_digest
from gradwire.trainer.recovery import recover
from gradwire.trainer.trainer import Trainer
from gradwire.trainer.update import Outcome

WAYS = [Way("fsdp", 2), Way("hsdp", 4), Way("tensor_parallel", 4)]
UPDATES, SAVED, BROKEN = 9, 5, 7


class Break(Callback):
    """Ends the run in the middle of an update."""

    def on_update(self, trainer: Trainer, outcome: Outcome) -> None:
        if trainer.clock.updates == BROKEN + 1:
            raise RuntimeError("broken on purpose")


def _journalled(way: Way, url: str | None, *, breaks: bool = False) -> Trainer:
    store = None if url is None else Checkpointer(url, group=dist.group.WORLD)
    settings = {} if store is None else {"journal": "update", "save_every": Duration(SAVED, "updates")}
    trainer, _ = trainer_of(way, store, UPDATES, ema=0.9, **settings)
    if breaks:
        trainer.callbacks["break"] = Break()
    if store is not None:
        recover(trainer, store, "latest-if-any")
    return trainer


def break_and_resume(rank: int, folder: str, ways: Sequence[Way]) -> None:
    """Journal in these ways, break off, and go on. On the ranks."""
    for way in ways:
        url = f"{folder}/{way.strategy}"
        with pytest.raises(RuntimeError, match="on purpose"):
            _journalled(way, url, breaks=True).fit()
        elsewhere = _journalled(Way("ddp", way.ranks), url).clock.updates
        resumed = _journalled(way, url)
        reached = resumed.clock.updates
        resumed.fit()
        undisturbed = _journalled(way, None)
        undisturbed.fit()
        found = {"reached": reached, "same": state_digest(resumed) == state_digest(undisturbed), "elsewhere": elsewhere}
        Path(f"{folder}/{way.strategy}-{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    for ranks in (2, 4):
        spawned(ranks, break_and_resume, str(folder), [way for way in WAYS if way.ranks == ranks])
    return folder


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_broken_run_goes_on_after_its_last_update_in_the_same_bits(broken: Path, way: Way) -> None:
    found = [json.loads((broken / f"{way.strategy}-{rank}.json").read_text()) for rank in range(way.ranks)]
    assert [each["reached"] for each in found] == [BROKEN] * way.ranks
    assert all(each["same"] for each in found)
    assert [each["elsewhere"] for each in found] == [SAVED] * way.ranks
