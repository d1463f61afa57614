from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradwire.checkpoint import State, StateTooLarge, UnsupportedState
from gradwire.checkpoint.staging import Staging, bytes_of
from gradwire.checkpoint.tensors import pieces
from tests.checkpoint.states import same, same_state, state_at


def staged(state: State) -> tuple[State, int]:
    copy = Staging().copy(state)
    copy.ready()
    return copy.state, copy.nbytes


def copied(*tensors: Tensor) -> tuple[list[Tensor], int]:
    state, nbytes = staged(State({"tensors": list(tensors)}))
    return state.shared["tensors"], nbytes


def bits(tensor: Tensor) -> bytes:
    return b"".join(bytes(piece) for piece in pieces(tensor, 2**20))


def overwrite(tensor: Tensor) -> None:
    tensor.untyped_storage().fill_(0xAB)


def test_a_copy_is_equal_and_does_not_change_with_the_state() -> None:
    live = state_at(3)
    state, _ = staged(live)
    assert same_state(state, state_at(3))
    live.shared["model"]["weight"].zero_()
    live.shared["optimizer"]["state"][0]["step"].zero_()
    live.shared["model"]["new"] = 1
    live.local["residual"].zero_()
    assert same_state(state, state_at(3))


def test_what_is_not_captured_stays_named() -> None:
    assert staged(State({}, {}, ("sampler",)))[0].not_captured == ("sampler",)


def test_tensors_that_share_memory_are_copied_once_and_share_it_again() -> None:
    flat = torch.arange(100.0)
    (whole, head, matrix, again, integers), nbytes = copied(
        flat, flat[:10], flat[20:80].view(6, 10).t(), flat, flat[30:32].view(torch.int64)
    )
    assert nbytes == 400
    assert torch.equal(head, flat[:10])
    assert torch.equal(matrix, flat[20:80].view(6, 10).t())
    assert torch.equal(integers, flat[30:32].view(torch.int64))
    assert len({each.untyped_storage().data_ptr() for each in (whole, head, matrix, again)}) == 1
    whole[20] = -1
    assert matrix[0, 0] == -1


def test_a_small_view_of_a_large_storage_costs_what_it_shows() -> None:
    (head, tail), nbytes = copied(torch.arange(10**6)[:3], torch.arange(10**6)[-3:])
    assert head.tolist() == [0, 1, 2]
    assert tail.tolist() == [999_997, 999_998, 999_999]
    assert nbytes < 300


def test_tensors_with_gaps_are_packed_and_cost_once() -> None:
    flat = torch.arange(10_000.0)
    (even, again, odd), nbytes = copied(flat[::2], flat[::2], flat[1::2])
    assert torch.equal(even, flat[::2])
    assert torch.equal(again, flat[::2])
    assert torch.equal(odd, flat[1::2])
    assert nbytes < 40_100


def test_a_gap_in_memory_that_is_copied_anyway_costs_nothing() -> None:
    flat = torch.arange(1000.0)
    (_, even), nbytes = copied(flat, flat[::2])
    assert torch.equal(even, flat[::2])
    assert nbytes == 4000


def test_lazy_conjugates_and_negatives_keep_their_values() -> None:
    numbers = torch.randn(5, dtype=torch.complex64)
    (conjugate, negative, plain), _ = copied(numbers.conj(), numbers.conj().imag, numbers)
    assert torch.equal(conjugate, numbers.conj())
    assert torch.equal(negative, numbers.conj().imag)
    assert torch.equal(plain, numbers)
    assert bits(conjugate) == bits(numbers.conj())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint16, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.bfloat16, torch.complex128],
)
def test_every_dtype_and_shape_keeps_its_bits(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.empty(shape, dtype=dtype)
    tensor.untyped_storage().copy_(torch.arange(tensor.untyped_storage().nbytes(), dtype=torch.uint8).untyped_storage())
    (copy,), _ = copied(tensor)
    assert (copy.shape, copy.dtype, bits(copy)) == (tensor.shape, tensor.dtype, bits(tensor))


@st.composite
def views(draw: st.DrawFn, length: int = 240) -> tuple[torch.dtype, int, tuple[int, ...], tuple[int, ...]]:
    """A view of `length` bytes: dtype, offset, shape, strides."""
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.complex64, torch.complex128]))
    left = length // dtype.itemsize - 1
    offset = draw(st.integers(0, left))
    left -= offset
    shape, strides = [], []
    for _ in range(draw(st.integers(0, 3))):
        stride = draw(st.integers(0, 8))
        shape.append(draw(st.integers(1, min(left // stride, 5) + 1 if stride else 4)))
        strides.append(stride)
        left -= (shape[-1] - 1) * stride
    return dtype, offset, tuple(shape), tuple(strides)


@given(st.lists(views(), min_size=1, max_size=6))
@settings(max_examples=150)
def test_any_views_of_one_storage_keep_their_bits(lie: list[Any]) -> None:
    storage = torch.arange(240, dtype=torch.uint8).untyped_storage()
    tensors = [torch.empty(0, dtype=dtype).set_(storage, *where) for dtype, *where in lie]
    expected = [bits(tensor) for tensor in tensors]
    copies, nbytes = copied(*tensors)
    storage.fill_(0)
    assert [bits(copy) for copy in copies] == expected
    assert nbytes <= sum(tensor.numel() * tensor.dtype.itemsize + 128 for tensor in tensors)


def test_the_memory_is_used_again() -> None:
    staging = Staging()
    first = staging.copy(state_at(1)).state.shared["model"]["weight"].untyped_storage().data_ptr()
    second = staging.copy(state_at(2)).state
    assert second.shared["model"]["weight"].untyped_storage().data_ptr() == first
    assert same_state(second, state_at(2))


def test_another_state_gets_memory_that_fits() -> None:
    staging = Staging()
    for size in (1000, 100_000, 10):
        state = staging.copy(State({"x": torch.full((size,), 2.0)})).state
        assert torch.equal(state.shared["x"], torch.full((size,), 2.0))
        assert state.shared["x"].untyped_storage().nbytes() == 4 * size


def test_a_module_and_its_optimizer_come_out_whole() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(16, 4)).sum().backward()
    optimizer.step()
    live = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "parameters": list(model.parameters())}
    expected = {name: [bits(value)] for name, value in model.state_dict().items()}
    state, nbytes = staged(State(live))
    for parameter in model.parameters():
        overwrite(parameter)
    assert {name: [bits(value)] for name, value in state.shared["model"].items()} == expected
    assert not state.shared["parameters"][0].requires_grad
    assert nbytes < 3 * sum(each.numel() * 4 for each in model.parameters()) + 40 * 128


def test_numbers_and_containers_are_kept_and_copied() -> None:
    inner = {"list": [1, (2.5, None)], 7: "seven"}
    state, nbytes = staged(State(inner, {"flag": True}))
    inner["list"].append(3)  # type: ignore[attr-defined]
    assert same(state.shared, {"list": [1, (2.5, None)], 7: "seven"})
    assert state.local == {"flag": True}
    assert nbytes == 0


def test_what_cannot_be_saved_is_named_before_anything_is_copied() -> None:
    with pytest.raises(UnsupportedState, match=r"shared\.a\[1\] is a tensor of torch.float32 with layout torch.sparse"):
        staged(State({"a": [1, torch.eye(2).to_sparse()]}))
    with pytest.raises(UnsupportedState, match=r"local\.m is on the meta device"):
        staged(State({}, {"m": torch.empty(2, device="meta")}))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UnsupportedState, match="nested more than 64 levels deep"):
        staged(State({"endless": endless}))


def test_a_copy_that_does_not_fit_into_memory_is_refused() -> None:
    with (
        mock.patch("psutil.virtual_memory", return_value=mock.Mock(available=3999)),
        pytest.raises(StateTooLarge, match=r"takes 4000 bytes and 3999 bytes of memory are free; with stage 'none'"),
    ):
        staged(State({"x": torch.zeros(1000)}))


def test_bytes_of_a_tree_count_shared_memory_once() -> None:
    flat = torch.zeros(100)
    assert bytes_of({"a": flat, "b": [flat[:50], 1]}) == 400
    assert bytes_of({}) == 0
