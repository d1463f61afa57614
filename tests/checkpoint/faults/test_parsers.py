"""Whatever a store holds, reading it ends in a value or in one of the library's errors."""

from functools import cache

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.checkpoint_faults.parsers import DOCUMENTS, TARGETS, altered, seeds, try_parser

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2**31, 2**53 + 1, 2**62 + 1, 2**64, 10**30])
    | st.text(max_size=8)
    | st.sampled_from(["0" * 64, "f" * 32, "float32", "raw", "planes+zstd", "commit", "epoch", "../../etc/passwd"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["dict", "tuple", "tensor", "float", "int"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
FUZZ = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])

valid = cache(seeds)


@pytest.mark.parametrize("name", TARGETS)
def test_valid_data_are_taken(name: str) -> None:
    assert all(try_parser(name, data) for data in valid()[name])
    assert valid()[name]


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=200))
@FUZZ
def test_any_bytes_are_taken_or_refused(name: str, data: bytes) -> None:
    try_parser(name, data)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
@FUZZ
def test_altered_bytes_are_taken_or_refused(name: str, data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(valid()[name])))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(whole)))
        whole[position : position + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try_parser(name, bytes(whole))


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
@FUZZ
def test_altered_documents_are_taken_or_refused(name: str, data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(valid()[name]))
    changes = data.draw(st.integers(1, 3))
    try_parser(
        name, altered(whole, changes, lambda below: data.draw(st.integers(0, below - 1)), lambda: data.draw(JSON))
    )


@given(length=st.integers(0, 2**40), data=st.binary(max_size=64), level=st.integers(1, 3))
@FUZZ
def test_a_compressed_chunk_is_bounded_by_the_length_that_is_expected(length: int, data: bytes, level: int) -> None:
    frame = bytearray(zstandard.ZstdCompressor(level=level, write_content_size=True).compress(bytes(2**20) + data))
    frame[5:9] = (length % 2**32).to_bytes(4, "little")
    assert not try_parser("coded chunk", bytes(frame))
