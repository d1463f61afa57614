"""Damage among commits and claims: the present branch stays the present one, and what was gone back on stays gone."""

from pathlib import Path

import pytest

from gradwire.checkpoint import Checkpointer, CheckpointError, StoreUnavailable
from gradwire.checkpoint.commit import Epoch, Seal, commit_name
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.epochs import CommitWriter
from gradwire.checkpoint.fsck import check
from gradwire.checkpoint.journal_reader import JournalReader
from gradwire.checkpoint.repair import repair
from gradwire.checkpoint.store import Store
from tests.checkpoint.journals import put
from tests.checkpoint.states import same_state, state_at

BRANCH = {5: 150, 7: 160}  # after update 100, number 2, was gone back to; number 3, update 200, was abandoned


@pytest.fixture
def run(tmp_path: Path) -> Checkpointer:
    """Numbers 1 to 7: a claim, updates 100 and 200; a claim that goes back to 100, and 150; a claim and 160.

    The first writer still is at work, and will try number 4.
    """
    first = _writer(tmp_path)
    for update in (100, 200):
        first.save(state_at(update), {"updates": update})
    for back, update in ((100, 150), (150, 160)):
        writer = _writer(tmp_path)
        writer.restore(back)
        writer.save(state_at(update), {"updates": update})
    assert [type(CommitLog(Store.open(str(tmp_path))).read(number)) is Epoch for number in range(1, 8)] == [
        number in (1, 4, 6) for number in range(1, 8)
    ]
    return first


def _writer(folder: Path) -> Checkpointer:
    return Checkpointer(folder, keep_last=99)


def _harm(folder: Path, number: int, how: str) -> None:
    path = folder / commit_name(number)
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[len(data) // 2] ^= 4
    path.unlink() if how == "removed" else path.write_bytes(data[: 40 if how == "cut short" else None])


def _latest(folder: Path) -> int:
    state, commit = _writer(folder).restore()
    assert same_state(state, state_at(commit.update))
    return commit.update


@pytest.mark.parametrize(
    ("numbers", "how"),
    [
        *[((number,), "flipped") for number in range(1, 8)],
        *[(numbers, "flipped") for numbers in ((4, 6), (5, 7), (2, 7), (2, 5, 7), (6, 7))],
        *[((number,), "cut short") for number in (4, 5)],
        *[((number,), "removed") for number in (2, 3)],
    ],
    ids=str,
)
def test_damage_never_brings_back_a_branch_that_was_gone_back_on(
    run: Checkpointer, tmp_path: Path, numbers: tuple[int, ...], how: str
) -> None:
    for number in numbers:
        _harm(tmp_path, number, how)
    whole = [100 for number in (2,) if number not in numbers]
    whole += [update for number, update in BRANCH.items() if number not in numbers]
    if whole:
        assert _latest(tmp_path) == whole[-1]
    else:
        with pytest.raises(CheckpointError):
            _latest(tmp_path)
        return
    store = Store.open(str(tmp_path))
    repair(store, check(store))
    assert check(store).sound
    assert _latest(tmp_path) == whole[-1]
    with pytest.raises(CheckpointError, match="took over"):
        run.save(state_at(-1), {"updates": 201})
    successor = _writer(tmp_path)
    successor.restore()
    successor.save(state_at(170), {"updates": 170})
    assert _latest(tmp_path) == 170
    assert [commit.update for commit in successor.commits()] == [*whole, 170]


def test_a_repair_does_not_bring_back_a_branch_by_removing_what_followed_it(run: Checkpointer, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    for number in BRANCH:
        commit = next(each for each in CommitLog(store).history().commits if each.sequence == number)
        (tmp_path / commit.parts[0].name).unlink()
    assert _latest(tmp_path) == 100
    repair(store, check(store))
    assert check(store).sound
    assert _latest(tmp_path) == 100


def test_a_claim_alone_moves_nothing(run: Checkpointer, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    writer = CommitWriter(store, "killed before its first snapshot")
    writer.continue_from(run.at(100))
    writer.claim()
    assert CommitLog(store).history().last == 8
    assert _latest(tmp_path) == 160


def test_claims_above_all_damage_decide_nothing_as_they_do_without_damage(run: Checkpointer, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    for commit in (run.at(160), run.at(100)):  # both were killed before their first snapshot
        writer = CommitWriter(store, "killed")
        writer.continue_from(commit)
        writer.claim()
    _harm(tmp_path, 8, "flipped")
    assert _latest(tmp_path) == 160


def test_a_repair_makes_no_journal_count_that_did_not(run: Checkpointer, tmp_path: Path) -> None:
    store, base = Store.open(str(tmp_path)), run.at(160)
    put(store, base, base.epoch, 161, 162, 163)
    writer = CommitWriter(store, "goes back to 161")
    writer.continue_from(base, Seal(base.sequence, base.epoch, 161))
    claim = writer.claim()
    assert claim is not None
    put(store, base, claim.sequence, 162, 163)
    _harm(tmp_path, claim.sequence, "flipped")
    assert JournalReader(store, base).updates() == []
    repair(store, check(store))
    assert JournalReader(store, base).updates() == []
    assert check(store).sound


def test_a_repair_relies_on_nothing_that_could_be_read_before_and_cannot_now(run: Checkpointer, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    _harm(tmp_path, 3, "flipped")
    report = check(store)
    _harm(tmp_path, 7, "cut short")
    with pytest.raises(StoreUnavailable, match="could be read when the store was checked: check it again"):
        repair(store, report)


def test_retention_leaves_what_may_be_a_claim(run: Checkpointer, tmp_path: Path) -> None:
    _harm(tmp_path, 4, "flipped")
    writer = Checkpointer(tmp_path, keep_last=1, keep_best=0)
    writer.restore()
    for update in (170, 180, 190):
        writer.save(state_at(update), {"updates": update})
    assert [commit.update for commit in writer.commits()] == [190]
    with pytest.raises(CheckpointError):
        run.save(state_at(-1), {"updates": 201})
    assert _latest(tmp_path) == 190
