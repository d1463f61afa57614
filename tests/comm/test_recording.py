"""What ranks keep of a reduction gives back its very bits, and gradients installed from it are those of backward."""

import copy
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm import (
    AllReduce,
    CommError,
    DeepGradientCompression,
    Encoded,
    PowerSGD,
    Topology,
    attach,
    decode,
)
from gradwire.comm import codecs as all_codecs
from gradwire.comm.codecs import Bf16, Int4, Int8, NoCodec, RandomK, TopK
from gradwire.comm.recording import Record
from tests.comm.models import Branches, data, gradients, mlp

CODECS = [
    *(all_codecs.named(name) for name in all_codecs.NAMES if name != "none"),
    Int8(block=64, rounding="stochastic"),
    Int4(hadamard=True),
    TopK(0.05, "exact"),
    RandomK(0.1),
    DeepGradientCompression(ratio=0.01, warmup=8),
]
AXES = {2: [(2,)], 4: [(4,), (2, 2), (2, 1, 2)]}
SEGMENT_MB = 1 / 256  # several segments
SMALL = 0.002  # MiB: several buckets
CPU = torch.device("cpu")


def _topologies(size):
    return [Topology(**dict(zip("xyz", extents, strict=False))) for extents in AXES[size]]


def _everyones(encoded):
    """By bucket, what all ranks kept."""
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [(each.bucket, each.codec, each.ranges, each.payload) for each in encoded])
    found = {}
    for share in (Encoded(*each) for rank in gathered for each in rank):
        found.setdefault(share.bucket, []).append(share)
    return found


def _same_bits(one, other):
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def _recorded(rank, all_reduce, count, dtype, op):
    """The shares of all ranks of one reduction, which give its bits."""
    size = dist.get_world_size()
    record = Record(0, count, rank, size, CPU)
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)
    if rank == 0 and dtype != torch.float32:
        tensor[count // 2 : count // 2 + 1] = float("nan")
    all_reduce(tensor, op, update=3, record=record)
    shares = _everyones(record.take()).get(0, [])
    again = torch.full_like(tensor, 7)
    decode(shares, again)
    assert _same_bits(again, tensor), f"{all_reduce.topology} {all_reduce.codecs} {count} {dtype} {op}"
    return shares


def _coded(rank, size):
    for topology in _topologies(size):
        last = [axis for axis, extent in topology.axes.items() if extent > 1][-1]
        for codec in CODECS:
            all_reduce = AllReduce(topology, codecs={last: codec}, segment_mb=SEGMENT_MB)
            for count, dtype, op in ((5003, torch.float32, "sum"), (97, torch.bfloat16, "mean")):
                shares = _recorded(rank, all_reduce, count, dtype, op)
                assert {share.codec for share in shares} == {all_codecs.spelled(codec.at(3))}
                assert all(share.payload.numel() < 0.75 * count * 4 / size + 512 for share in shares)
            all_reduce.close()


@pytest.mark.parametrize("size", AXES)
def test_owners_bytes_of_a_coded_last_axis_give_the_bits_of_the_reduction(ranks, size):
    ranks(size, _coded, size)


def _other_orders(rank, size):
    int8, bf16 = Int8(), Bf16()
    for codecs, rotate in product(({"x": int8}, {"x": int8, "y": bf16}, {"y": int8}), (False, True)):
        all_reduce = AllReduce(Topology(x=2, y=2), "ring", codecs, segment_mb=SEGMENT_MB, rotate=rotate)
        shares = _recorded(rank, all_reduce, 20_011, torch.float32, "mean")
        kinds = {all_codecs.spelled(codec) for codec in (codecs.values() if rotate else [next(iter(codecs.values()))])}
        assert {share.codec for share in shares} == kinds
        assert all(share.ranges for share in shares), "segments are not dealt out among those that own the same"
        all_reduce.close()


def test_wherever_the_coded_axis_stands_its_owners_bytes_are_enough_and_kept_once(ranks):
    ranks(4, _other_orders, 4)


def _raw(rank, size):
    for topology, algorithm in product(_topologies(size), ("native", "ring")):
        all_reduce = AllReduce(topology, algorithm, segment_mb=SEGMENT_MB)
        for count, dtype, op in (
            (5003, torch.float32, "mean"),
            (97, torch.float16, "sum"),
            (3, torch.float64, "mean"),
            (0, torch.float32, "sum"),
        ):
            shares = _recorded(rank, all_reduce, count, dtype, op)
            assert {share.codec for share in shares} <= {None}
            assert sum(share.payload.numel() for share in shares) == count * dtype.itemsize
        all_reduce.close()


@pytest.mark.parametrize("size", AXES)
def test_without_a_codec_ranks_keep_equal_shares_of_the_result(ranks, size):
    ranks(size, _raw, size)


class _Foreign(NoCodec):
    name = "mine"


def _foreign(rank):
    all_reduce = AllReduce(codecs={"ring": _Foreign()}, segment_mb=SEGMENT_MB)
    assert {share.codec for share in _recorded(rank, all_reduce, 5003, torch.float32, "sum")} == {None}
    all_reduce.close()


def test_of_a_codec_that_text_cannot_say_the_result_is_kept(ranks):
    ranks(2, _foreign)


def _backward(model, rank, step=0):
    model.zero_grad()
    model(data(rank, step=step)).square().mean().backward()


def _decoded(reducer, encoded):
    flats = []
    for bucket in reducer.buckets:
        flats.append(torch.empty_like(bucket.gradients))
        decode(encoded[bucket.index], flats[-1])
    return flats


def _attached(codecs, axes, dtype=torch.float32, op="mean"):
    model = mlp().to(dtype)
    return model, attach(model, AllReduce(Topology(**axes), codecs=codecs, segment_mb=SEGMENT_MB), op, SMALL)


def _reduced(rank, codecs, axes, dtype):
    model, reducer = _attached(codecs, axes, dtype)
    replayed = mlp().to(dtype)
    installed = attach(replayed, AllReduce(), bucket_mb=SMALL)
    reducer.record(True)
    for step in range(2):
        model.zero_grad()
        model(data(rank, step=step).to(dtype)).square().mean().backward()
        encoded = reducer.take_encoded()
        flats = _decoded(reducer, _everyones(encoded))
        assert all(_same_bits(flat, bucket.gradients) for flat, bucket in zip(flats, reducer.buckets, strict=True))
        assert len(encoded) == len(reducer.buckets) > 1
        reducer.give_back(encoded)
        installed.install(flats, reducer.take_presence())
        for name, value in gradients(model).items():
            assert _same_bits(value, gradients(replayed)[name]), name
    assert installed._reductions == reducer._reductions
    assert all(slot.parameter.grad is slot.view for bucket in installed.buckets for slot in bucket.slots)
    reducer.detach()
    installed.detach()


COMPRESSIONS = {
    "int8": Int8(),
    "int4": Int4(),
    "fp8": all_codecs.Fp8(),
    "bf16": Bf16(),
    "sign": all_codecs.Sign(),
    "top_k": TopK(0.1),
    "random_k": RandomK(0.1),
    "dgc": DeepGradientCompression(0.1, warmup=2),
    "power_sgd": PowerSGD(1),
    "none": NoCodec(),
}


def _reduced_by_all(rank, axes):
    for name in COMPRESSIONS if axes != {"ring": 4} else ("int8", "power_sgd"):
        codec = COMPRESSIONS[name]
        _reduced(rank, {list(axes)[-1]: codec}, axes, torch.float32)
    _reduced(rank, {list(axes)[-1]: Int8()}, axes, torch.bfloat16)
    _reduced(rank, {}, axes, torch.bfloat16)


@pytest.mark.parametrize("axes", [{"ring": 2}, {"ring": 4}, {"local": 2, "node": 2}], ids=str)
def test_installed_gradients_are_those_of_backward(ranks, axes):
    ranks(4 if axes != {"ring": 2} else 2, _reduced_by_all, axes)


def _alone(_):
    model = mlp()
    reducer = attach(model, AllReduce(), bucket_mb=SMALL, recorded=True)
    reducer.record(True)
    _backward(model, 0)
    encoded, presence = reducer.take_encoded(), reducer.take_presence()
    flats = []
    for bucket, share in zip(reducer.buckets, encoded, strict=True):
        flats.append(torch.empty_like(bucket.gradients))
        decode([share], flats[-1])
    expected = gradients(model)
    model.zero_grad()
    reducer.install(flats, presence)
    assert gradients(model).keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in gradients(model).items())


def test_a_single_process_keeps_all_of_it():
    _alone(0)


def test_a_single_process_without_buckets_refuses_to_record():
    with pytest.raises(CommError, match="recorded=True"):
        attach(mlp(), AllReduce()).record(True)


def _in_pool(rank):
    model, reducer = _attached({"ring": Int8()}, {"ring": 2})
    reducer.record(True)
    _backward(model, rank)
    first = reducer.take_encoded()
    before = [share.payload.clone() for share in first]
    _backward(model, rank, step=1)
    assert all(torch.equal(share.payload, kept) for share, kept in zip(first, before, strict=True))
    addresses = {share.payload.data_ptr() for share in first}
    second = reducer.take_encoded()
    assert not addresses & {share.payload.data_ptr() for share in second}
    addresses |= {share.payload.data_ptr() for share in second}
    reducer.give_back(first)
    reducer.give_back(second)
    reducer.give_back(second)
    for step in range(2, 6):
        _backward(model, rank, step=step)  # a step that nobody takes costs no memory either
        if step != 4:
            shares = reducer.take_encoded()
            assert {share.payload.data_ptr() for share in shares} < addresses
            assert len({share.payload.data_ptr() for share in shares}) == len(shares)
            reducer.give_back(shares)
    reducer.detach()


def test_what_was_taken_stays_until_it_is_given_back_and_is_then_used_again(ranks):
    ranks(2, _in_pool)


def _presence(rank):
    torch.manual_seed(0)
    model = Branches()
    replayed = copy.deepcopy(model)
    reducer, installed = (attach(each, AllReduce(), bucket_mb=SMALL) for each in (model, replayed))
    reducer.record(True)
    model(data(rank), rank).square().mean().backward()
    _backward(_Whole(replayed), rank)  # all three have a gradient before
    shares, presence = _everyones(reducer.take_encoded()), reducer.take_presence()
    installed.install(_decoded(reducer, shares), presence)
    assert replayed.branches[2].weight.grad is None and replayed.branches[1].weight.grad is not None
    assert gradients(replayed).keys() == gradients(model).keys()
    assert all(torch.equal(value, gradients(model)[name]) for name, value in gradients(replayed).items())
    for each in (reducer, installed):
        each.detach()


class _Whole(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, inputs):
        return sum(self.module(inputs, branch) for branch in range(3))


def test_parameters_that_nobody_used_have_no_gradient_after_installing_either(ranks):
    ranks(2, _presence)


def _accumulated(rank):
    model, reducer = _attached({"ring": Int8()}, {"ring": 2}, op="sum")
    reducer.record(True)
    with reducer.no_sync():
        _backward(model, rank)
    reducer.reduce()
    flats = _decoded(reducer, _everyones(reducer.take_encoded()))
    assert all(_same_bits(flat, bucket.gradients) for flat, bucket in zip(flats, reducer.buckets, strict=True))
    with pytest.raises(CommError, match="not taken already"):
        reducer.take_encoded()
    reducer.fall_back("ring")
    _backward(model, rank, step=1)
    shares = _everyones(reducer.take_encoded())
    assert {share.codec for each in shares.values() for share in each} == {"bf16"}
    flats = _decoded(reducer, shares)
    assert all(_same_bits(flat, bucket.gradients) for flat, bucket in zip(flats, reducer.buckets, strict=True))
    reducer.record(False)
    _backward(model, rank, step=2)
    with pytest.raises(CommError, match="record"):
        reducer.take_encoded()
    reducer.detach()


def test_reductions_without_backward_and_after_a_codec_fell_back_are_kept_too(ranks):
    ranks(2, _accumulated)


class _Odd(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.common = nn.Linear(4, 4)
        if kind == "sparse":
            self.table = nn.Embedding(3, 4, sparse=True)
        else:
            self.phase = nn.Parameter(torch.zeros(4, dtype=torch.complex64))


def _refused(_, kind, name):
    reducer = attach(_Odd(kind), AllReduce())
    with pytest.raises(CommError, match=f"{name}: {kind}"):
        reducer.record(True)
    reducer.detach()


@pytest.mark.parametrize(("kind", "name"), [("sparse", "table.weight"), ("complex", "phase")])
def test_parameters_whose_gradients_cannot_be_recorded_are_named(ranks, kind, name):
    ranks(2, _refused, kind, name)


def _shares(count=1000):
    codec = Int8()
    values, found = torch.randn(count), []
    for start, stop in ((0, 512), (512, count)):
        payload = torch.empty(codec.nbytes(stop - start), dtype=torch.uint8)
        codec.encode(values[start:stop], payload)
        found.append(Encoded(0, all_codecs.spelled(codec), ((start, stop),), payload))
    return found


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda one, two: [one], "elements 512 to 1000 .* missing"),
        (lambda one, two: [two], "elements 0 to 512 .* missing"),
        (lambda one, two: [one, one, two], "elements 0 to 512 .* more than once"),
        (lambda one, two: [one, Encoded(0, two.codec, ((512, 1001),), two.payload)], "elements 1000 to 1001"),
        (lambda one, two: [one, Encoded(1, two.codec, two.ranges, two.payload)], "one bucket"),
        (lambda one, two: [one, Encoded(0, two.codec, two.ranges, two.payload[4:])], "is uint8"),
        (lambda one, two: [one, Encoded(0, None, two.ranges, two.payload)], "is uint8"),
        (lambda one, two: [one, Encoded(0, "int9", two.ranges, two.payload)], "int9"),
        (lambda one, two: [one, Encoded(0, two.codec, ((-488, 0), (512, 1000)), two.payload)], "more than once"),
    ],
)
def test_shares_that_do_not_make_up_a_bucket_are_refused(broken, words):
    with pytest.raises(CommError, match=words):
        decode(broken(*_shares()), torch.empty(1000))


def test_gradients_of_another_module_are_not_installed():
    reducer = attach(mlp(), AllReduce(), bucket_mb=SMALL, recorded=True)
    flats = [torch.zeros_like(bucket.gradients) for bucket in reducer.buckets]
    for wrong, presence in ((flats[1:], None), ([*flats[:-1], flats[-1].double()], None), (flats, b"\xff\xff")):
        with pytest.raises(CommError):
            reducer.install(wrong, presence)


@pytest.mark.parametrize("codec", [NoCodec(), *(codec for codec in CODECS if codec.name != "dgc")], ids=repr)
def test_codecs_are_read_back_from_text(codec):
    assert all_codecs.read(all_codecs.spelled(codec)) == codec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int8(",
        "int8",
        "int8()",
        "int8(block=256)",
        "int8(block=255, rounding=nearest)",
        "int7(block=8)",
        "none()",
        "int8(block=0256, rounding=nearest)",
        "int8(block=256, rounding=nearest, block=256)",
        "top_k(ratio=nan, threshold=exact)",
        "int4(block=128, rounding=nearest, hadamard=1)",
        "int8(block=x, rounding=nearest)",
        "power_sgd",
        "bf16\n",
    ],
)
def test_text_that_says_no_codec_is_refused(text):
    with pytest.raises(CommError):
        all_codecs.read(text)
