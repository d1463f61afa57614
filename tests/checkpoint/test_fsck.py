"""fsck finds every damage, says what it costs, and repairs without touching a whole snapshot."""

from pathlib import Path

import pytest

from gradwire.checkpoint import Checkpointer, WriterFenced
from gradwire.checkpoint.commit import commit_name
from gradwire.checkpoint.fsck import Report, check
from gradwire.checkpoint.outline import read_outline
from gradwire.checkpoint.packs import SALT
from gradwire.checkpoint.repair import repair
from gradwire.checkpoint.snapshot import PartWriter
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags
from tests.checkpoint.places import corrupt, objects, place, s3_endpoint, save  # noqa: F401
from tests.checkpoint.states import same_state, state_at


def packs(url: str, update: int) -> list[str]:
    store = Store.open(url)
    outline = read_outline(store, Checkpointer(url).at(update))
    return [pack.name for part in outline.parts for pack in part.packs]


def fixed(url: str, report: Report) -> list[str]:
    removed = repair(Store.open(url), report)
    again = check(Store.open(url))
    assert again.sound, again.findings
    assert again.leftovers == ()
    assert [commit.update for commit in again.whole] == [commit.update for commit in report.whole]
    return removed


def test_a_sound_store_is_sound_and_repairing_it_does_nothing(place: str) -> None:  # noqa: F811
    checkpointer = save(place, range(1, 4))
    Tags(Store.open(place)).create("gold", checkpointer.at(2))
    before = objects(place)
    report = check(Store.open(place))
    assert report.sound
    assert [commit.update for commit in report.whole] == [1, 2, 3]
    assert report.checked == {"commits": 4, "parts": 3, "packs": 3, "journal": 0, "tags": 1}
    assert report.size > 3 * 4000
    assert repair(Store.open(place), report) == []
    assert objects(place) == before


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    report = check(Store.open(str(tmp_path)))
    assert report.sound
    assert report.whole == ()


def test_a_damaged_pack_costs_the_snapshots_and_tensors_in_it(place: str) -> None:  # noqa: F811
    save(place, range(1, 4))
    name = packs(place, 2)[0]
    data = bytearray(Store.open(place).get(name, 10**6))
    data[SALT + 10] ^= 1
    corrupt(place, name, bytes(data))
    report = check(Store.open(place))
    (finding,) = report.findings
    assert finding.name == name
    assert "do not have the digest that names it" in finding.problem
    assert finding.lost.startswith("the snapshot of update 2: shared.model.weight")
    assert [commit.update for commit in report.whole] == [1, 3]
    removed = fixed(place, report)
    assert name in removed
    assert same_state(Checkpointer(place).restore()[0], state_at(3))
    assert same_state(Checkpointer(place).restore(1)[0], state_at(1))


@pytest.mark.parametrize("kind", ["commits", "parts", "packs"])
@pytest.mark.parametrize("data", [None, b"", b"rotten"], ids=["missing", "empty", "altered"])
def test_every_kind_of_object_is_checked_and_repaired(tmp_path: Path, kind: str, data: bytes | None) -> None:
    checkpointer, store = save(str(tmp_path), range(1, 4)), Store.open(str(tmp_path))
    commit = checkpointer.at(2)
    name = {"commits": commit.name, "parts": commit.parts[0].name, "packs": packs(str(tmp_path), 2)[0]}[kind]
    store.delete(name)
    if data is not None:
        corrupt(str(tmp_path), name, data)
    report = check(store)
    if kind == "commits" and data is None:
        assert report.sound, "what retention removed is no damage"
        assert len(report.leftovers) == 2
    else:
        assert [finding.name for finding in report.findings] == [name]
        assert report.findings[0].lost
    assert [each.update for each in report.whole] == [1, 3]
    fixed(str(tmp_path), report)
    for update in (1, 3):
        assert same_state(Checkpointer(str(tmp_path)).restore(update)[0], state_at(update))


def test_one_bit_in_each_region_of_each_object_is_found(tmp_path: Path) -> None:
    checkpointer = save(str(tmp_path), range(1, 3))
    Tags(Store.open(str(tmp_path))).create("gold", checkpointer.at(1))
    for name in sorted(objects(str(tmp_path))):
        whole = (tmp_path / name).read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 8)):
            broken = bytearray(whole)
            broken[position] ^= 0x10
            (tmp_path / name).write_bytes(broken)
            assert name in [finding.name for finding in check(Store.open(str(tmp_path))).findings], (name, position)
        (tmp_path / name).write_bytes(whole)
    assert check(Store.open(str(tmp_path))).sound


def test_leftovers_of_a_killed_save_are_no_damage_and_repair_removes_them(place: str) -> None:  # noqa: F811
    save(place, range(1, 3))
    store, before = Store.open(place), objects(place)
    PartWriter(store, 0).write(state_at(9).shared, state_at(9).local)
    report = check(store)
    assert report.sound
    assert set(report.leftovers) == objects(place) - before
    assert set(fixed(place, report)) == set(report.leftovers)


def test_tags_that_are_altered_or_name_nothing_are_found_and_removed(tmp_path: Path) -> None:
    checkpointer, store = save(str(tmp_path), range(1, 4)), Store.open(str(tmp_path))
    Tags(store).create("rotten", checkpointer.at(1))
    Tags(store).create("dangling", checkpointer.at(2))
    Tags(store).create("good", checkpointer.at(3))
    corrupt(str(tmp_path), "tags/rotten")
    store.delete(checkpointer.at(2).name)
    report = check(store)
    assert {finding.name for finding in report.findings} == {"tags/rotten", "tags/dangling"}
    fixed(str(tmp_path), report)
    assert Tags(store).names() == ["good"]


def test_where_no_snapshot_is_whole_nothing_is_removed(tmp_path: Path) -> None:
    save(str(tmp_path), range(1, 3))
    for update in (1, 2):
        corrupt(str(tmp_path), packs(str(tmp_path), update)[0])
    report, before = check(Store.open(str(tmp_path))), objects(str(tmp_path))
    assert len(report.findings) == 2
    assert report.whole == ()
    assert repair(Store.open(str(tmp_path)), report) == []
    assert objects(str(tmp_path)) == before


def test_a_repair_stops_a_writer_that_is_still_at_work_and_a_new_one_goes_on(tmp_path: Path) -> None:
    checkpointer = save(str(tmp_path), range(1, 3))
    corrupt(str(tmp_path), packs(str(tmp_path), 2)[0])
    repair(Store.open(str(tmp_path)), check(Store.open(str(tmp_path))))
    with pytest.raises(WriterFenced, match="fsck --repair"):
        checkpointer.save(state_at(3), {"updates": 3})
    save(str(tmp_path), range(3, 4))
    assert [commit.update for commit in Checkpointer(str(tmp_path)).commits()] == [1, 3]
    assert check(Store.open(str(tmp_path))).sound


def test_a_commit_that_descends_from_another_one_than_there_is_is_found(tmp_path: Path) -> None:
    import dataclasses

    from gradwire.checkpoint.commit import Parent

    commit = save(str(tmp_path), range(1, 3)).at(2)
    assert commit.parent is not None
    forged = dataclasses.replace(commit, parent=Parent(commit.parent.sequence, "0" * 64))
    corrupt(str(tmp_path), commit.name, forged.to_bytes())
    (finding,) = check(Store.open(str(tmp_path))).findings
    assert finding.name == commit.name
    assert commit_name(commit.parent.sequence) in finding.problem


def test_a_chunk_that_its_part_tells_wrongly_is_found_in_a_pack_that_is_as_it_was_written(tmp_path: Path) -> None:
    import dataclasses

    from gradwire.checkpoint.snapshot import PartRef
    from gradwire.checkpoint.store import content_name

    commit, store = save(str(tmp_path), range(1, 2)).at(1), Store.open(str(tmp_path))
    part = store.get(commit.parts[0].name, 10**6)
    digest = read_outline(store, commit).tensors[0].stored.chunks[0].digest
    wrong = part.replace(digest.encode(), b"0" * 32)
    store.put_content("parts", wrong, content_name(wrong))
    forged = dataclasses.replace(commit, parts=(PartRef(0, content_name(wrong), len(wrong)),))
    corrupt(str(tmp_path), commit.name, forged.to_bytes())
    (finding,) = check(store).findings
    assert finding.name == packs(str(tmp_path), 1)[0]
    assert "shared.model.weight" in finding.lost
