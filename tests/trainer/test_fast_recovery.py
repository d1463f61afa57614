"""Runs whose codecs carry over what they lost: journalled, gone on with, moved, and replayed to prove them."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.checkpoint import Checkpointer
from gradwire.checkpoint.history import read_log
from gradwire.checkpoint.journal import Place, entry_bytes, parse_journal_entry
from gradwire.checkpoint.store import Store
from gradwire.comm import DeepGradientCompression, PowerSGD
from gradwire.comm.codecs import Int4, Sign, TopK
from gradwire.comm.compression import Compression
from gradwire.schedulers import Duration
from gradwire.trainer import Trainer, checkpoint_tables
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.errors import NothingToProveError, ProofError, ReplayError
from gradwire.trainer.proof import prove
from gradwire.trainer.recovery import put_back, read, recover
from tests.trainer.test_communication import (
    UPDATES,
    Warnings,
    states_of,
    strategy_of,
    total,
    trainer_on,
    weights,
)

BASE, LAST = 8, 13
CODECS: Mapping[str, Compression] = {
    "int4": Int4(),
    "top_k": TopK(ratio=0.25),
    "sign": Sign(),
    "power_sgd": PowerSGD(rank=2),
    "dgc": DeepGradientCompression(ratio=0.25),
}


class Weights(Callback):
    """Those after every update."""

    def __init__(self) -> None:
        self.after: dict[int, Tensor] = {}

    def on_record(self, trainer: Trainer, record: Mapping[str, Any]) -> None:
        self.after[trainer.clock.updates] = weights(trainer).clone()


def store_at(folder: str) -> Checkpointer:
    return Checkpointer(folder, keep_last=9, keep_journal=9, group=dist.group.WORLD)


def journalled(store: Checkpointer, codec: Compression, recovery: str = "fast", **settings: Any) -> Trainer:
    kept = {"journal": "update", "recovery": recovery, "save_every": Duration(BASE, "updates")}
    trainer, _ = trainer_on(strategy_of({"ring": codec}), store, **kept, **settings)
    return trainer


def restored(folder: str, codec: Compression, recovery: str = "fast") -> tuple[Trainer, Any]:
    store = store_at(folder)
    trainer = journalled(store, codec, recovery)
    found, commit = read(store, BASE)
    put_back(trainer, found)
    return trainer, commit


def undisturbed(folder: str, codec: Compression) -> dict[int, Tensor]:
    """A whole run, journalled; its weights after every update."""
    trainer, seen = journalled(store_at(folder), codec, log_every=1), Weights()
    trainer.callbacks["weights"] = seen
    trainer.fit()
    return seen.after


def _recover_fast(rank: int, folder: str) -> None:
    for name, codec in CODECS.items():
        store = f"{folder}/{name}"
        whole = undisturbed(store, codec)
        trainer, commit = restored(store, codec)
        carried = states_of(trainer.strategy)
        assert trainer.replay(commit, LAST) == LAST
        assert torch.equal(weights(trainer), whole[LAST]), name
        now = states_of(trainer.strategy)
        assert any(total(now).values()), name
        for before, after in zip(carried, now, strict=True):
            assert total([before]) == total([after]), name
            assert after["reductions"] == before["reductions"] + LAST - BASE
        trainer.fit()
        log = read_log(Store.open(store))
        marks = [entry.commit.clock.get("recovered") for entry in log.entries if entry.branch == "present"]
        assert marks == [None, None, LAST, LAST, LAST], name
        (decision,) = trainer.decisions.of("recovered")
        assert (decision.update, decision.value) == (LAST, BASE)
        assert trainer.clock.updates == UPDATES


def test_weights_are_replayed_bit_for_bit_and_what_follows_is_marked(
    ranks: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks(2, _recover_fast, str(tmp_path))
    checkpoint_tables.print_log(read_log(Store.open(str(tmp_path / "int4"))))
    assert capsys.readouterr().out.count(f"not bit-exact: fast recovery at update {LAST}") == 3


def _recover_exactly(rank: int, folder: str) -> None:
    whole = undisturbed(folder, Int4())
    trainer, commit = restored(folder, Int4(), "exact")
    with pytest.raises(ReplayError, match=f"update {LAST} can be reached .* checkpoint.recovery=fast"):
        trainer.replay(commit, LAST)
    warned = Warnings()
    logging.getLogger("gradwire").addHandler(warned)
    trainer, commit = restored(folder, Int4(), "exact")
    assert trainer.replay(commit) == BASE
    assert f"updates {BASE + 1} to {UPDATES} are computed again" in warned.lines[-1]
    trainer.fit()
    assert torch.equal(weights(trainer), whole[UPDATES])
    assert trainer.keeping is not None and trainer.keeping.journal is None
    assert trainer.decisions.of("recovered") == []


def test_exact_recovery_computes_again_and_ends_in_the_same_bits(ranks: Callable[..., None], tmp_path: Path) -> None:
    ranks(2, _recover_exactly, str(tmp_path / "store"))


def _begin_on_four(rank: int, folder: str) -> None:
    whole = undisturbed(folder, Int4())
    if rank == 0:
        torch.save(whole[LAST], f"{folder}-weights")


def _go_on_on_two(rank: int, folder: str) -> None:
    trainer, commit = restored(folder, Int4())
    saved = total(states_of(trainer.strategy))
    assert any(saved.values())
    assert trainer.replay(commit, LAST) == LAST
    assert torch.equal(weights(trainer), torch.load(f"{folder}-weights"))
    assert total(states_of(trainer.strategy)) == saved
    trainer.fit()
    assert trainer.clock.updates == UPDATES


def test_on_fewer_ranks_the_sum_of_what_was_lost_stays(ranks: Callable[..., None], tmp_path: Path) -> None:
    ranks(4, _begin_on_four, str(tmp_path / "store"))
    ranks(2, _go_on_on_two, str(tmp_path / "store"))


class Told(Warnings):
    """What was said since the last look."""

    def take(self) -> str:
        lines, self.lines = self.lines, []
        return "\n".join(lines)


def _prove(rank: int, folder: str) -> None:
    told = Told(logging.INFO)
    logging.getLogger("gradwire").addHandler(told)
    logging.getLogger("gradwire").setLevel(logging.INFO)
    undisturbed(folder, Int4())
    before = sorted(map(str, Path(folder).rglob("*")))
    store = store_at(folder)
    trainer = journalled(store, Int4())
    told.take()
    prove(trainer, store, None, 20)
    assert "proven: updates 17 to 24, done again from the snapshot of update 16" in told.take()
    prove(trainer, store, "22", 20)
    said = told.take()
    assert "updates 17 to 20," in said and "compared after update 20)" in said
    assert "not proven: updates 21 to 22" in said
    prove(trainer, store, "14", 20)  # nothing to compare with before the snapshot of update 8
    assert "proven: updates 1 to 8, done again from the snapshot of update 0" in told.take()
    prove(trainer, store, None, 3)
    assert "nothing is proven" in told.take()
    recover(trainer, store, "22")
    assert trainer.clock.updates == 22
    dist.barrier()
    _falsify(rank, folder)
    with pytest.raises(ProofError, match=r"from the snapshot of update 16: after update 20 .* Nothing was changed"):
        prove(trainer, store, None, 20)
    assert sorted(map(str, Path(folder).rglob("*"))) == before
    (lost,) = Path(folder).glob(f"journal/*/*/{19:020d}-1-of-2")
    dist.barrier()
    if rank == 0:
        lost.write_bytes(lost.read_bytes()[:-1] + b" ")
    dist.barrier()
    with pytest.raises(ProofError, match="damaged after update 18 and was to lead to update 24"):
        prove(trainer, store, None, 20)
    empty = store_at(f"{folder}-empty")
    plain, _ = trainer_on(strategy_of({"ring": Int4()}), empty)
    plain.fit()
    with pytest.raises(NothingToProveError, match="this run has none"):
        prove(plain, empty, None, 20)


def _falsify(rank: int, folder: str) -> None:
    """Have the entry of update 20 say that another state came out."""
    for entry in Path(folder).glob(f"journal/*/*/{20:020d}-*-of-2") if rank == 0 else ():
        place = Place.of(str(entry.relative_to(folder)))
        right = parse_journal_entry(entry.read_bytes(), place, "entry")
        entry.write_bytes(entry_bytes(dataclasses.replace(right, digest="0" * 32)))
    dist.barrier()


def test_a_proof_compares_digests_and_snapshots_and_changes_nothing(ranks: Callable[..., None], tmp_path: Path) -> None:
    ranks(2, _prove, str(tmp_path / "store"))
