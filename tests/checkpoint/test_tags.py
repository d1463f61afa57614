import json
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint, NoCheckpoint, TagError, UnsupportedFormat
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.reading import find
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tag, Tags, parse_tag
from tests.checkpoint.places import corrupt, place, s3_endpoint, save  # noqa: F401

TAG = Tag("best.run-1", 7, "a" * 64, "2031-01-01T00:00:00.000+00:00")


def test_a_tag_names_a_snapshot_until_it_is_deleted(place: str) -> None:  # noqa: F811
    commit, store = save(place, range(1, 4)).at(2), Store.open(place)
    Tags(store).create("gold", commit)
    assert find(store, "gold") == commit
    assert Tags(store).all().names(commit.sequence) == ("gold",)
    Tags(store).delete("gold")
    assert Tags(store).names() == []
    with pytest.raises(TagError, match="no tag 'gold'; it has: none"):
        find(store, "gold")
    with pytest.raises(TagError, match="no tag 'gold'"):
        Tags(store).delete("gold")


def test_the_same_tag_twice_is_one_and_on_another_snapshot_is_refused(tmp_path: Path) -> None:
    checkpointer, tags = save(str(tmp_path), range(1, 3)), Tags(Store.open(str(tmp_path)))
    first = tags.create("gold", checkpointer.at(1))
    assert tags.create("gold", checkpointer.at(1)) == first
    with pytest.raises(TagError, match="names another snapshot"):
        tags.create("gold", checkpointer.at(2))
    assert tags.read("gold") == first


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b", "ä", "x" * 101, "100", "-rf", "a\n"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    checkpointer, tags = save(str(tmp_path), range(1, 2)), Tags(Store.open(str(tmp_path)))
    for action in (lambda: tags.create(name, checkpointer.at(1)), lambda: tags.read(name), lambda: tags.delete(name)):
        with pytest.raises(TagError, match="cannot be a tag"):
            action()


def test_a_tag_of_a_snapshot_that_goes_meanwhile_is_taken_back(tmp_path: Path) -> None:
    commit, store = save(str(tmp_path), range(1, 3)).at(1), Store.open(str(tmp_path))
    store.delete(commit.name)
    with pytest.raises(NoCheckpoint, match="update 1 was removed meanwhile"):
        Tags(store).create("late", commit)
    assert Tags(store).names() == []


def test_a_tag_whose_snapshot_is_gone_says_so(tmp_path: Path) -> None:
    commit, store = save(str(tmp_path), range(1, 3)).at(1), Store.open(str(tmp_path))
    Tags(store).create("gold", commit)
    store.delete(commit.name)
    with pytest.raises(NoCheckpoint, match="the tag 'gold' names is gone"):
        find(store, "gold")


def test_a_tag_that_is_deleted_while_all_are_read_is_left_out(tmp_path: Path) -> None:
    commit, store = save(str(tmp_path), range(1, 2)).at(1), Store.open(str(tmp_path))
    Tags(store).create("gold", commit)
    with mock.patch.object(Tags, "names", return_value=["gold", "gone"]):
        assert [tag.name for tag in Tags(store).all().tags] == ["gold"]


def test_a_damaged_tag_is_told_by_name(place: str) -> None:  # noqa: F811
    commit, store = save(place, range(1, 2)).at(1), Store.open(place)
    Tags(store).create("gold", commit)
    corrupt(place, "tags/gold")
    assert list(Tags(store).all().damaged) == ["gold"]
    with pytest.raises(DamagedCheckpoint, match="tags/gold is cut short or altered"):
        find(store, "gold")


def test_a_tag_is_read_back_as_it_was_written() -> None:
    assert parse_tag(TAG.to_bytes(), TAG.name, "tag") == TAG


@given(st.data())
def test_no_altered_tag_is_read(data: st.DataObject) -> None:
    whole = TAG.to_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    broken = bytearray(whole)
    broken[position] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(broken), whole[:position]):
        with pytest.raises(DamagedCheckpoint):
            parse_tag(wrong, TAG.name, "tag")


@given(st.binary(max_size=300))
def test_any_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        parse_tag(data, "x", "tag")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"name": "other"}, DamagedCheckpoint, "expected 'best.run-1'"),
        ({"kind": "commit"}, DamagedCheckpoint, "expected 'tag'"),
        ({"sequence": 0}, DamagedCheckpoint, "sequence is 0"),
        ({"sequence": True}, DamagedCheckpoint, "sequence is True"),
        ({"commit": "x"}, DamagedCheckpoint, "64 hexadecimal digits"),
        ({"format": 2}, UnsupportedFormat, "install a newer gradwire"),
    ],
)
def test_a_sealed_tag_that_is_wrong_is_refused(change: dict[str, object], kind: type[Exception], message: str) -> None:
    from gradwire.checkpoint.commit import seal

    fields = json.loads(TAG.to_bytes().splitlines()[0]) | change
    with pytest.raises(kind, match=message):
        parse_tag(seal(fields), TAG.name, "tag")


def test_what_is_removed_while_it_is_read_is_told_as_that(tmp_path: Path) -> None:
    from gradwire.checkpoint.outline import read_outline
    from gradwire.checkpoint.reading import reading

    commit, store = save(str(tmp_path), range(1, 3)).at(1), Store.open(str(tmp_path))
    store.delete(commit.parts[0].name)
    with pytest.raises(DamagedCheckpoint, match="is missing"), reading(store, commit):
        read_outline(store, commit)
    store.delete(commit.name)
    with pytest.raises(NoCheckpoint, match="update 1 was removed while it was read"), reading(store, commit):
        read_outline(store, commit)
    assert [each.update for each in CommitLog(store).history().commits] == [2]
