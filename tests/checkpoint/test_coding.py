import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint
from gradwire.checkpoint.coding import FAR, NEAR, PLANES, RAW, Coder, Decoder, decode, encode
from gradwire.checkpoint.tensors import pieces

ITEM_SIZES = st.sampled_from([1, 2, 4, 8, 16])


def bytes_of(tensor: torch.Tensor) -> memoryview:
    return next(pieces(tensor, 2**30))


def noise(count: int) -> memoryview:
    return memoryview(np.random.default_rng(1).bytes(count))


@given(st.binary(max_size=64), ITEM_SIZES, st.integers(1, 200))
def test_what_shrinks_comes_back(element: bytes, item_size: int, count: int) -> None:
    data = memoryview(element * item_size * count)
    coded = encode(data, item_size)
    if coded is not None:
        assert len(coded) <= 0.95 * len(data)
        assert decode(coded, item_size, len(data)) == data


@pytest.mark.parametrize("item_size", [1, 2, 4, 8, 16])
def test_what_is_longer_than_what_is_joined_at_a_time_comes_back(item_size: int) -> None:
    few = np.random.default_rng(1).integers(0, 4, 2**20 + 16 * 5, np.uint8)
    coded = encode(few.data, item_size)
    assert coded is not None
    target, decoder = np.empty(len(few) + 1, np.uint8), Decoder()
    for start in (0, 1):
        place = target[start : start + len(few)]
        decoder.decode_into(place.data, coded, item_size, "a chunk")
        assert np.array_equal(place, few)
    assert decode(coded, item_size, len(few)) == few.data


def test_planes_are_the_bytes_of_equal_significance() -> None:
    data = bytes_of(torch.arange(1000, dtype=torch.int32))
    coded = encode(data, 4)
    assert coded is not None
    assert zstandard.ZstdDecompressor().decompress(coded) == b"".join(bytes(data[first::4]) for first in range(4))


def test_dense_weights_shrink_by_their_exponents_and_noise_does_not() -> None:
    weights = torch.randn(2**18, generator=torch.Generator().manual_seed(1)) * 0.02
    coded = encode(bytes_of(weights), 4)
    assert coded is not None
    assert 0.8 < len(coded) / 2**20 < 0.88
    assert encode(noise(2**20), 4) is None


def test_a_tensor_is_coded_as_long_as_that_pays_and_tried_again_later() -> None:
    coder = Coder(4)
    same = memoryview(bytes(2048))
    assert coder.code(same)[0] == PLANES
    assert coder.code(noise(2048)) == (RAW, noise(2048))
    assert [coder.code(same)[0] for _ in range(15)] == [RAW] * 14 + [PLANES]
    assert coder.code(same)[0] == PLANES
    assert Coder(4).code(same[:1000])[0] == RAW


def test_near_at_hand_only_what_shrinks_to_half_is_coded_and_a_sample_tells_what_need_not_be_tried() -> None:
    weights = bytes_of(torch.randn(2**18, generator=torch.Generator().manual_seed(1)) * 0.02)
    assert [Coder(4, worth).code(weights)[0] for worth in (FAR, NEAR)] == [PLANES, RAW]
    zeros, noise_first = memoryview(bytes(2**20)), memoryview(bytes(noise(2**16)) + bytes(2**20))
    assert [Coder(4, NEAR).code(data)[0] for data in (zeros, zeros[:2048], noise_first)] == [PLANES, PLANES, RAW]
    coded = Coder(4, NEAR).code(zeros)[1]
    assert decode(coded, 4, 2**20) == zeros


@given(st.binary(max_size=200), ITEM_SIZES, st.integers(1, 2**40))
def test_any_bytes_are_damage_and_nothing_large_is_allocated(data: bytes, item_size: int, length: int) -> None:
    with pytest.raises(DamagedCheckpoint, match="a chunk"):
        decode(data, item_size, length)


@pytest.mark.parametrize("length", [1999, 2001, 4000, 2**40])
def test_another_length_than_stated_is_damage(length: int) -> None:
    coded = encode(memoryview(bytes(2000)), 1)
    assert coded is not None
    with pytest.raises(DamagedCheckpoint, match=f"is compressed from 2000 bytes, expected {length}"):
        decode(coded, 1, length)


def test_a_frame_that_says_more_than_it_holds_or_has_something_behind_it_is_damage() -> None:
    coded = encode(memoryview(bytes(range(200)) * 10), 1)
    assert coded is not None
    for broken in (coded[:-1], coded + b"x", coded[:10]):
        with pytest.raises(DamagedCheckpoint, match="cannot be decompressed"):
            decode(broken, 1, 2000, "packs/0")
