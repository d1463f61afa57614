import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradwire.comm.buckets import lay_out

SHAPES = st.lists(st.integers(1, 9), max_size=3).map(tuple)
PARAMETERS = st.lists(st.tuples(SHAPES, st.sampled_from([torch.float32, torch.bfloat16, torch.float64])), min_size=1)


def _named(described):
    return [
        (f"p{place}", nn.Parameter(torch.ones(shape, dtype=dtype))) for place, (shape, dtype) in enumerate(described)
    ]


@given(PARAMETERS, st.integers(1, 2000), st.integers(1, 4000))
def test_every_parameter_has_one_place_of_its_own(described, first, later):
    parameters = _named(described)
    buckets = lay_out(parameters, (first, later))
    slots = [slot for bucket in buckets for slot in bucket.slots]
    assert sorted(slot.name for slot in slots) == sorted(name for name, _ in parameters)
    assert [slot.index for slot in slots] == list(range(len(slots)))
    for slot in slots:
        slot.view.fill_(slot.index + 1)
    for bucket in buckets:
        for slot in bucket.slots:
            assert slot.bucket == bucket.index and slot.parameter.dtype == bucket.flat.dtype
            assert slot.view.shape == slot.parameter.shape and (slot.view == slot.index + 1).all()
            assert slot.view.data_ptr() % 64 == bucket.flat.data_ptr() % 64
        assert (bucket.flat != 0).sum() == sum(slot.view.numel() for slot in bucket.slots)


@given(PARAMETERS, st.integers(1, 2000), st.integers(1, 4000))
def test_only_the_last_bucket_of_a_dtype_may_be_below_its_limit(described, first, later):
    buckets = lay_out(_named(described), (first, later))
    for dtype in {bucket.flat.dtype for bucket in buckets}:
        sizes = [bucket.size for bucket in buckets if bucket.flat.dtype == dtype]
        limits = [first, *[later] * (len(sizes) - 1)]
        assert all(size >= limit for size, limit in zip(sizes[:-1], limits, strict=False))


def test_last_registered_parameters_come_first():
    buckets = lay_out(_named([((4, 4), torch.float32)] * 6), (64, 128))
    assert [bucket.names for bucket in buckets] == [("p5",), ("p4", "p3"), ("p2", "p1"), ("p0",)]
    assert [bucket.size for bucket in buckets] == [64, 128, 128, 64]


def test_a_bucket_says_what_it_holds():
    buckets = lay_out(_named([((4, 4), torch.float32)] * 3), (1, 128))
    assert [str(bucket) for bucket in buckets] == ["p2", "p1 … p0 (2 parameters)"]
