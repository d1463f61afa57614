"""What holds for every codec, whatever it is given."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradwire.comm.codecs import NAMES, Codec, named
from gradwire.comm.errors import CodecError
from tests.comm.codecs.variants import DENSE, EVERY, SPARSE

every = pytest.mark.parametrize("codec", EVERY, ids=repr)
LARGEST = torch.finfo(torch.float32).max
lengths = st.one_of(st.integers(0, 70), st.integers(0, 3000))


def coded(codec: Codec, values: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The payload, what it decodes to, and the error."""
    payload = torch.full((codec.nbytes(values.numel()),), 0xAA, dtype=torch.uint8)
    error, decoded = torch.full_like(values, 7.0), torch.full_like(values, 7.0)
    codec.encode(values, payload, seed=seed, error=error)
    codec.decode(payload, decoded)
    return payload, decoded, error


@st.composite
def finite(draw: st.DrawFn) -> Tensor:
    """Values of one magnitude between denormal and largest, with numbers of any other among them."""
    count = draw(lengths)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = (torch.randn(count, generator=generator, dtype=torch.float64) * 2.0 ** draw(st.integers(-149, 127))).clamp(
        -LARGEST, LARGEST
    )
    for number in draw(
        st.lists(st.floats(-LARGEST, LARGEST, width=32) | st.sampled_from([0.0, -0.0, 1e-45]), max_size=9)
    ):
        if count:
            values[draw(st.integers(0, count - 1))] = number
    return values.float()


@every
@settings(max_examples=12)
@given(values=finite(), seed=st.integers(-(2**70), 2**70))
def test_decoded_and_error_make_up_the_values(codec: Codec, values: Tensor, seed: int) -> None:
    if codec in DENSE and getattr(codec, "hadamard", False):
        values = values * 2.0**-10  # the way back overflows past 2^121
    _, decoded, error = coded(codec, values, seed)
    assert decoded.isfinite().all()
    torch.testing.assert_close(decoded.double() + error.double(), values.double(), rtol=2**-22, atol=_ulps(values))


def _ulps(values: Tensor) -> float:
    """A few roundings of the largest number: errors of small values beside it are as inexact."""
    return float(values.abs().max()) * 2**-21 if values.numel() else 0.0


@every
@settings(max_examples=6)
@given(count=lengths, seed=st.integers(0, 2**64))
def test_same_seed_gives_the_same_bytes_and_error_or_not_changes_none(codec: Codec, count: int, seed: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    first, _, _ = coded(codec, values, seed)
    again = torch.full_like(first, 0x55)
    codec.encode(values, again, seed=seed)
    assert torch.equal(first, again)


@every
@settings(max_examples=6)
@given(count=lengths)
def test_decode_add_adds_what_decode_writes(codec: Codec, count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    values, out = torch.randn(count, generator=generator), torch.randn(count, generator=generator)
    payload, decoded, _ = coded(codec, values)
    expected = out + decoded
    codec.decode_add(payload, out)
    assert torch.equal(out, expected)


@every
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", [0, 1000, 2599])
def test_what_is_no_number_is_seen(codec: Codec, bad: float, where: int) -> None:
    values = torch.randn(2600, generator=torch.Generator().manual_seed(1))
    values[where] = bad
    payload, decoded, error = coded(codec, values)
    out = torch.zeros_like(values)
    codec.decode_add(payload, out)
    for tensor in (decoded, out):
        assert not tensor[where].isfinite()
        assert codec.name == "none" or tensor[where].isnan()
    if codec in SPARSE:
        assert decoded.isnan().all()
        assert error.isnan().all()
    elif codec.granule > 1 and not getattr(codec, "hadamard", False):
        first = where // codec.granule * codec.granule
        assert decoded[first : first + codec.granule].isnan().all()
        assert decoded.isnan().sum() <= codec.granule


@every
def test_nothing_is_encoded_as_nothing(codec: Codec) -> None:
    payload, decoded, error = coded(codec, torch.empty(0))
    assert decoded.numel() == error.numel() == 0
    assert payload.numel() <= 8


@every
def test_zeros_come_out_as_zeros(codec: Codec) -> None:
    _, decoded, error = coded(codec, torch.zeros(1500))
    assert (decoded == 0).all()
    assert (error == 0).all()


@every
def test_pieces_cut_at_granules_decode_like_the_whole(codec: Codec) -> None:
    if codec in SPARSE or getattr(codec, "rounding", "") == "stochastic" or getattr(codec, "hadamard", False):
        return  # what these send depends on the whole, or on positions in it
    values = torch.randn(4001)
    cut = 2 * codec.granule
    whole = coded(codec, values)[1]
    assert torch.equal(torch.cat([coded(codec, values[:cut])[1], coded(codec, values[cut:])[1]]), whole)


@every
def test_tensors_may_lie_anywhere(codec: Codec) -> None:
    values, error, out = torch.randn(3001), torch.empty(3003), torch.empty(3007)
    payload = torch.empty(4 + codec.nbytes(3000), dtype=torch.uint8)[4:]
    codec.encode(values[1:], payload, error=error[3:])
    codec.decode(payload, out[7:])
    expected = coded(codec, values[1:].clone())
    assert torch.equal(payload, expected[0])
    assert torch.equal(out[7:], expected[1])
    assert torch.equal(error[3:], expected[2])


@every
def test_payloads_are_multiples_of_four_bytes(codec: Codec) -> None:
    assert all(codec.nbytes(count) % 4 == 0 for count in range(600))


@every
def test_other_tensors_are_refused(codec: Codec) -> None:
    values, payload = torch.ones(100), torch.empty(codec.nbytes(100), dtype=torch.uint8)
    for bad in (values.double(), values.view(10, 10), torch.ones(200)[::2], torch.ones(20_000)):
        with pytest.raises(CodecError, match=codec.name):
            codec.encode(bad, payload)
    with pytest.raises(CodecError, match="an error of 99"):
        codec.encode(values, payload, error=torch.ones(99))
    with pytest.raises(CodecError, match="multiples of 4"):
        codec.encode(values, torch.empty(payload.numel() + 1, dtype=torch.uint8)[1:])
    with pytest.raises(CodecError, match="payload"):
        codec.decode(payload[:-1], values)


@pytest.mark.parametrize("name", NAMES)
def test_codecs_are_found_by_name(name: str) -> None:
    assert named(name).name == name


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(CodecError, match="Did you mean 'top_k'"):
        named("topk")
