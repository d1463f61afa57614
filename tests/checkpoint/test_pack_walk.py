import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint
from gradwire.checkpoint.pack_walk import PackWalk
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.source import BytesSource

DATA = bytes(range(250)) * 2


class Counting(BytesSource):
    """Counts the bytes that are read."""

    read = 0

    def read_into(self, target: memoryview, start: int) -> int:
        count = super().read_into(target, start)
        self.read += count
        return count


def ref(data: bytes) -> PackRef:
    return PackRef("0" * 64, len(data), xxhash.xxh3_128_hexdigest(data))


def walk(data: bytes, expected: bytes = DATA) -> PackWalk:
    return PackWalk(BytesSource(data), ref(expected), "packs/x")


@given(st.lists(st.tuples(st.integers(0, 499), st.integers(0, 499)), max_size=8))
def test_pieces_are_what_the_pack_holds_and_all_of_it_is_proven(spans: list[tuple[int, int]]) -> None:
    walking = walk(DATA)
    for start, stop in sorted(tuple(sorted(span)) for span in spans):
        target = bytearray(stop - start)
        walking.read_into(memoryview(target), start)
        assert target == DATA[start:stop]
    walking.finish()


def test_each_byte_is_read_once() -> None:
    source = Counting(DATA)
    walking = PackWalk(source, ref(DATA), "packs/x")
    for start in range(16, 400, 100):
        walking.read_into(memoryview(bytearray(90)), start)
    walking.finish()
    assert source.read == len(DATA)


@given(st.integers(0, 499), st.integers(0, 7))
def test_an_altered_bit_is_found_wherever_it_is(position: int, bit: int) -> None:
    broken = bytearray(DATA)
    broken[position] ^= 1 << bit
    walking = walk(bytes(broken))
    walking.read_into(memoryview(bytearray(100)), 50)
    walking.read_into(memoryview(bytearray(100)), 120)
    with pytest.raises(DamagedCheckpoint, match="packs/x is altered"):
        walking.finish()


def test_a_pack_of_another_size_is_damage() -> None:
    walking = walk(DATA[:100])
    with pytest.raises(DamagedCheckpoint, match="packs/x has 100 of its 500 bytes"):
        walking.read_into(memoryview(bytearray(30)), 90)
    with pytest.raises(DamagedCheckpoint, match="packs/x has 100 of its 500 bytes"):
        walk(DATA[:100]).read_into(memoryview(bytearray(30)), 200)
    with pytest.raises(DamagedCheckpoint, match="packs/x has 100 of its 500 bytes"):
        walk(DATA[:100]).finish()
    with pytest.raises(DamagedCheckpoint, match="packs/x is longer than the 500 bytes it may have"):
        walk(DATA + b"x").finish()
