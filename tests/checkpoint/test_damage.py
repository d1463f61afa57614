"""Every byte of every object matters: altered or cut anywhere, a snapshot is reported and never restored."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradwire.checkpoint import Checkpointer, DamagedCheckpoint
from tests.checkpoint.places import newest_objects
from tests.checkpoint.states import same_state, state_at


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    checkpointer = Checkpointer(str(folder))
    checkpointer.save(state_at(1), {"updates": 1}, {"eval/loss": 2.5})
    checkpointer.save(state_at(2), {"updates": 2}, {"eval/loss": 1.5})
    return folder


def assert_reported(folder: Path) -> None:
    checkpointer = Checkpointer(str(folder))
    state, commit = checkpointer.restore()
    assert commit.update == 1
    assert same_state(state, state_at(1))
    assert len(checkpointer.damaged) == 1
    with pytest.raises(DamagedCheckpoint):
        checkpointer.restore(2)


@pytest.mark.parametrize("kind", ["packs", "parts", "commits"])
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_or_a_cut_anywhere_is_found(store: Path, kind: str, data: st.DataObject) -> None:
    path = newest_objects(store)[kind]
    whole = path.read_bytes()
    position = data.draw(st.integers(0, len(whole) - 1), label="byte")
    if data.draw(st.booleans(), label="cut"):
        broken = whole[:position]
    else:
        broken = bytearray(whole)
        broken[position] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    try:
        path.write_bytes(broken)
        assert_reported(store)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", ["packs", "parts", "commits"])
def test_one_bit_in_each_region_of_each_object_is_found(store: Path, kind: str) -> None:
    path = newest_objects(store)[kind]
    whole = path.read_bytes()
    found = 0
    regions = range(0, len(whole), max(1, len(whole) // 64))
    for position in regions:
        broken = bytearray(whole)
        broken[position] ^= 0x10
        path.write_bytes(broken)
        checkpointer = Checkpointer(str(store))
        found += checkpointer.restore()[1].update == 1 and len(checkpointer.damaged) == 1
    path.write_bytes(whole)
    assert found == len(regions)
    assert same_state(Checkpointer(str(store)).restore()[0], state_at(2))


@pytest.mark.parametrize("kind", ["packs", "parts", "commits"])
def test_another_snapshots_object_under_this_ones_name_is_found(store: Path, kind: str) -> None:
    newest = newest_objects(store)[kind]
    other = next(path for path in sorted(newest.parent.iterdir()) if path != newest)
    whole = newest.read_bytes()
    newest.write_bytes(other.read_bytes())
    try:
        checkpointer = Checkpointer(str(store))
        assert checkpointer.restore()[1].update == 1
        assert len(checkpointer.damaged) == 1
    finally:
        newest.write_bytes(whole)
