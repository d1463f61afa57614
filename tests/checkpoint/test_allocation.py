import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint.allocation import allocated, allocated_together

MIB = 2**20


@given(st.lists(st.integers(0, 300), max_size=20))
def test_memory_that_is_allocated_together_does_not_overlap(sizes: list[int]) -> None:
    tensors = allocated_together(sizes)
    assert [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors] == [(torch.uint8, (size,)) for size in sizes]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert all((tensor == value).all() for value, tensor in enumerate(tensors))


def test_memory_is_aligned_as_torch_has_it_and_each_tensor_owns_its_bytes_alone() -> None:
    tensors = allocated_together([1, 63, 64, 65, 5 * MIB, 3])
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}
    assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [1, 63, 64, 65, 5 * MIB, 3]
    assert tensors[0].view(torch.bool).shape == (1,)


def test_only_neighbors_share_a_block_and_what_is_large_has_one_of_its_own() -> None:
    sizes = [20 * MIB, 11 * MIB, 2 * MIB, 40 * MIB, MIB]
    starts = [tensor.data_ptr() for tensor in allocated_together(sizes)]
    assert [second - first == size for first, second, size in zip(starts, starts[1:], sizes, strict=False)] == [
        True,
        False,
        False,
        False,
    ]


def test_one_block_has_its_size() -> None:
    for size in (0, 1, 5 * MIB):
        assert allocated(size).shape == (size,)
