import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint, UnsupportedFormat, UnsupportedState
from gradwire.checkpoint.ancestry import followed_by, leads_to
from gradwire.checkpoint.commit import Commit, Epoch, Parent, Seal, Writer, parse_entry, seal
from gradwire.checkpoint.snapshot import PartRef

WRITER = Writer("host:17", "0123")


def a_commit(sequence: int = 7, **changes: Any) -> Commit:
    commit = Commit(
        sequence=sequence,
        parent=Parent(3, "a" * 64),
        ancestry=((1, 3), (5, sequence)),
        epoch=5,
        writer=WRITER,
        created="2031-01-01T00:00:00.000+00:00",
        reason="interval",
        clock={"updates": 40, "samples": 1280},
        metrics={"eval/loss": 0.1, "odd": math.inf},
        world_size=2,
        captured={"shared": ("model",), "local": ()},
        parts=(PartRef(0, "b" * 64, 10), PartRef(1, "c" * 64, 20)),
        not_captured=("scaler",),
    )
    return dataclasses.replace(commit, **changes)


def test_a_commit_is_read_back_as_it_was_written() -> None:
    commit = a_commit()
    assert parse_entry(commit.to_bytes(), 7, "commit") == commit
    assert (commit.update, commit.name) == (40, "commits/00000000000000000007")


def test_an_epoch_is_read_back_as_it_was_written() -> None:
    for seal_ in (None, Seal(3, 1, 150)):
        epoch = Epoch(4, WRITER, "2031-01-01T00:00:00.000+00:00", seal_)
        assert parse_entry(epoch.to_bytes(), 4, "epoch") == epoch


@pytest.mark.parametrize("seals", [Seal(4, 1, 1), Seal(1, 4, 1), Seal(0, 1, 1), Seal(1, 0, 1), Seal(1, 1, -1)])
def test_an_epoch_seals_only_what_was_before_it(seals: Seal) -> None:
    with pytest.raises(DamagedCheckpoint, match="epoch, seals"):
        parse_entry(Epoch(4, WRITER, "2031-01-01T00:00:00.000+00:00", seals).to_bytes(), 4, "epoch")


def test_the_digest_is_in_the_second_line() -> None:
    document, digest, rest = a_commit().to_bytes().decode().split("\n")
    assert json.loads(document)["clock"] == {"updates": 40, "samples": 1280}
    assert (digest, rest) == (a_commit().digest, "")


@given(st.data())
def test_every_flipped_bit_and_every_cut_is_found(data: st.DataObject) -> None:
    whole = a_commit().to_bytes()
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    for broken in (bytes(flipped), whole[:position], whole + whole[: position + 1]):
        with pytest.raises(DamagedCheckpoint):
            parse_entry(broken, 7, "commit")


def sealed(**changes: Any) -> bytes:
    document = json.loads(a_commit().to_bytes().split(b"\n")[0])
    for key, value in changes.items():
        if value is ...:
            del document[key]
        else:
            document[key] = value
    return seal(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": 8},
        {"kind": "tag"},
        {"parent": {"sequence": 7, "sha256": "a" * 64}},
        {"parent": {"sequence": 3, "sha256": "a"}},
        {"parent": ...},
        {"ancestry": []},
        {"ancestry": [[1, 6]]},
        {"ancestry": [[1, 3], [4, 7]]},
        {"ancestry": [[5, 7], [1, 3]]},
        {"ancestry": [[1, "7"]]},
        {"epoch": 7},
        {"epoch": True},
        {"writer": "me"},
        {"clock": {}},
        {"clock": {"updates": {"float": "1.0"}}},
        {"clock": {"updates": -1}},
        {"clock": {"updates": {"int": hex(10**300)}}},
        {"clock": {"updates": 1, "x": {"int": hex(-(2**62) - 1)}}},
        {"metrics": {"x": {"int": hex(2**2000)}}},
        {"clock": {"updates": 1, "x": "text"}},
        {"metrics": {"x": None}},
        {"metrics": {"x": {"float": "one"}}},
        {"world_size": 1},
        {"world_size": 10**9},
        {"parts": [{"rank": 0, "sha256": "../../etc/passwd", "size": 1}] * 2},
        {"parts": [{"rank": 0, "sha256": "/" * 64, "size": 1}] * 2},
        {"parts": [{"rank": r, "sha256": "b" * 64, "size": 2**40} for r in range(2)]},
        {"parts": [{"rank": 0, "sha256": "b" * 64, "size": 1}] * 2},
        {"captured": {"shared": [1], "local": []}},
        {"captured": {"shared": []}},
        {"not_captured": [1]},
        {"not_captured": ...},
        {"reason": 1},
        {"created": ...},
    ],
)
def test_commits_that_contradict_themselves_are_damage(changes: dict[str, Any]) -> None:
    assert parse_entry(sealed(), 7, "commit") == a_commit()
    with pytest.raises(DamagedCheckpoint):
        parse_entry(sealed(**changes), 7, "commit")


def test_a_clock_counts_no_further_than_readers_do() -> None:
    commit = a_commit(clock={"updates": 2**62})
    assert parse_entry(commit.to_bytes(), 7, "commit") == commit
    with pytest.raises(UnsupportedState, match=r"clock\.updates is a whole number of 63 bits"):
        a_commit(clock={"updates": 2**62 + 1}).to_bytes()


def test_a_later_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedFormat, match="has format 2 and this version of gradwire reads format 1: install"):
        parse_entry(sealed(format=2, kind="something new"), 7, "commit")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda node: st.lists(node, max_size=3) | st.dictionaries(st.text(max_size=3), node, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(json.loads(a_commit().to_bytes().split(b"\n")[0]).keys() - {"format"})), JSON)
def test_any_value_in_any_field_is_damage_or_a_commit(key: str, value: Any) -> None:
    try:
        entry = parse_entry(sealed(**{key: value}), 7, "commit")
    except DamagedCheckpoint:
        return
    assert parse_entry(entry.to_bytes(), 7, "commit") == entry


@given(st.binary())
def test_any_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        parse_entry(data, 1, "commit")


def test_ancestry_joins_what_touches_and_keeps_the_gap_of_a_rollback() -> None:
    assert followed_by((), 1, 2) == ((1, 2),)
    assert followed_by(((1, 2),), 1, 3) == ((1, 3),)
    assert followed_by(((1, 10),), 11, 12) == ((1, 12),)
    assert followed_by(((1, 5),), 11, 12) == ((1, 5), (11, 12))
    assert followed_by(((1, 5), (11, 12)), 11, 13) == ((1, 5), (11, 13))
    assert [number for number in range(9) if leads_to(number, ((1, 3), (5, 7)))] == [1, 2, 3, 5, 6, 7]
