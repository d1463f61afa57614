"""The project's own all-reduce on real ranks: exact, as simulated, the same bits everywhere, no byte too many."""

import gc
import math
import queue
import threading
from itertools import product

import psutil
import pytest
import torch
import torch.distributed as dist

from gradwire.comm import AllReduce, CommError, Topology
from gradwire.comm import codecs as all_codecs
from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.codecs import Int4, Int8, RandomK, TopK
from gradwire.comm.fabric import Fabric
from gradwire.comm.layout import segments
from gradwire.comm.links import Link
from gradwire.comm.program import granule

ALGORITHMS = {
    "ring": Ring(),
    "bidirectional_ring": Ring(bidirectional=True),
    "two_shot": TwoShot(),
    "halving_doubling": HalvingDoubling(),
}
AXES = {2: [(2,), (1, 2, 1)], 3: [(3,), (1, 3)], 4: [(4,), (2, 2), (2, 1, 2)], 6: [(6,), (3, 2)]}
CODED_AXES = {2: [(2,)], 3: [(3,)], 4: [(4,), (2, 2)], 6: [(3, 2)]}
SIZES = [0, 1, 7, 97, 1009, 5003]
SEGMENT_MB = 1 / 256  # 4 KiB: the largest size makes five to ten segments
EXACT = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.complex64]
STRIDE = 17  # of the kinds of tensors every way gets one in so many, each others
SEED = 5
RANDOM = [Int8(rounding="stochastic"), Int4(rounding="stochastic"), RandomK(0.1)]
CODECS = [
    *(all_codecs.named(name) for name in all_codecs.NAMES if name not in ("none", "random_k")),
    Int4(hadamard=True),
    TopK(threshold="exact"),
    *RANDOM,
]


def _topologies(size, axes=AXES):
    return [Topology(**dict(zip("xyz", extents, strict=False))) for extents in axes[size]]


def _whole_numbers(size, count, dtype, seed):
    """Every rank's values, [P, n]: all partial sums are representable."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-8, 9, (size, count), generator=generator)
    return torch.complex(values.float(), values.flip(0).float()) if dtype.is_complex else values.to(dtype)


def _gaussian(size, count, dtype=torch.float32, seed=0):
    return torch.randn(size, count, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _assert_same_bits(tensor, why=""):
    """On every rank."""
    mine = tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
    first = mine.clone()
    if first.numel():
        dist.broadcast(first, 0)
    assert torch.equal(first, mine), f"other bits than on rank 0: {why}"


def _simulated(topology, inputs, algorithm, codecs, op, *, segment_mb=SEGMENT_MB, rotate=False):
    """What the fabric makes of it, segment by segment: the ranks' rows."""
    fabric = Fabric(topology, dict.fromkeys(topology.axes, Link(1e9, 1e-6)))
    most = max(int(segment_mb * 2**20) // inputs.itemsize, granule(codecs))
    ranges = segments(inputs.shape[1], most, granule(codecs))
    parts = [
        fabric.all_reduce(inputs[:, start:stop], algorithm, codecs, op, rotate, SEED << 14).outputs
        for start, stop in ranges
    ]
    return torch.cat(parts, dim=1) if parts else inputs.clone()


def _ways(size):
    """Every topology with every algorithm, with the axes in turned orders where that is another thing."""
    for topology, algorithm in product(_topologies(size), ALGORITHMS):
        yield topology, algorithm, False
        if sum(extent > 1 for extent in topology.axes.values()) > 1:
            yield topology, algorithm, True


def _exact(rank, size):
    kinds = list(product(EXACT, SIZES, ("sum", "mean")))
    for number, (topology, algorithm, rotate) in enumerate(_ways(size)):
        all_reduce = AllReduce(topology, algorithm, segment_mb=SEGMENT_MB, rotate=rotate)
        for dtype, count, op in kinds[number % STRIDE :: STRIDE]:
            inputs = _whole_numbers(size, count, dtype, count)
            total = inputs.to(torch.complex128 if dtype.is_complex else torch.float64).sum(0).to(dtype)
            result = inputs[rank].clone()
            if op == "mean" and not (dtype.is_floating_point or dtype.is_complex):
                continue
            if op == "mean":
                (torch.view_as_real(total) if dtype.is_complex else total).div_(size)
            all_reduce(result, op)
            assert torch.equal(result, total), f"{topology} {algorithm} {rotate=} {dtype} {count} {op}"
        all_reduce.close()


@pytest.mark.parametrize("size", AXES)
def test_representable_sums_and_means_are_exact(ranks, size):
    ranks(size, _exact, size)


def _as_simulated(rank, size):
    for topology, algorithm, rotate in _ways(size):
        segment_mb = 1.0 if rotate else SEGMENT_MB  # the fabric cannot begin with another axis than the first
        all_reduce = AllReduce(topology, algorithm, segment_mb=segment_mb, rotate=rotate)
        for dtype, count, op in ((torch.float32, 5003, "mean"), (torch.bfloat16, 7, "sum")):
            inputs = _gaussian(size, count, dtype)
            result = inputs[rank].clone()
            all_reduce(result, op)
            why = f"{topology} {algorithm} {rotate=} {dtype} {count} {op}"
            _assert_same_bits(result, why)
            if rank == 0:
                expected = _simulated(
                    topology, inputs, ALGORITHMS[algorithm], {}, op, segment_mb=segment_mb, rotate=rotate
                )
                assert torch.equal(result, expected[0]), why
        all_reduce.close()


@pytest.mark.parametrize("size", AXES)
def test_real_runs_give_the_bits_of_simulated_ones(ranks, size):
    ranks(size, _as_simulated, size)


def _coded(rank, size):
    for topology, codec in product(_topologies(size, CODED_AXES), CODECS):
        wide = list(topology.axes)
        for coded in [wide] if size != 4 or len(wide) == 1 else [wide[1:], wide]:
            codecs = dict.fromkeys(coded, codec)
            segment_mb = (
                1.0 if codec in RANDOM else SEGMENT_MB
            )  # the fabric counts random choices from a segment's start
            all_reduce = AllReduce(topology, "ring", codecs, segment_mb=segment_mb)
            for dtype, count in ((torch.float32, 3001), (torch.bfloat16, 97)):
                inputs = _gaussian(size, count, dtype)
                result = inputs[rank].clone()
                all_reduce(result, "mean", seed=SEED)
                why = f"{topology} {codecs} {dtype} {count}"
                _assert_same_bits(result, why)
                if rank == 0:
                    expected = _simulated(topology, inputs, Ring(), codecs, "mean", segment_mb=segment_mb)
                    assert torch.equal(result, expected[0]), why
            all_reduce.close()


@pytest.mark.parametrize("size", AXES)
def test_with_every_codec_all_ranks_hold_the_bits_of_the_simulation(ranks, size):
    ranks(size, _coded, size)


def _counted(rank, size):
    count = 16 * 1024 * size  # divides evenly everywhere
    for topology, algorithm in product(_topologies(size), ALGORITHMS):
        all_reduce = AllReduce(topology, algorithm, segment_mb=count * 4 / 4 / 2**20)
        all_reduce(torch.ones(count))
        assert _sent(all_reduce) == _formula(topology, 4 * count), f"{topology} {algorithm}"
        all_reduce.close()
    for topology, codec in product(_topologies(size), (Int8(), Int4(), all_codecs.named("sign"), TopK(0.01))):
        last = [axis for axis, extent in topology.axes.items() if extent > 1][-1]
        all_reduce = AllReduce(topology, "ring", {last: codec}, segment_mb=4.0)
        all_reduce(torch.randn(count))
        extent = topology.axes[last]
        chunk = count // topology.stride(last) // extent
        expected = _formula(topology, 4 * count) | {last: 2 * (extent - 1) * codec.nbytes(chunk)}
        assert _sent(all_reduce) == expected, f"{topology} {codec}"
        assert _sent(all_reduce) == dict.fromkeys(expected, 0)
        all_reduce.close()


def _sent(all_reduce):
    return {axis: traffic.sent for axis, traffic in all_reduce.take_traffic().items()}


def _formula(topology, nbytes):
    """2(d − 1)/d of what is left after the axes before, in bytes."""
    wide = {axis: extent for axis, extent in topology.axes.items() if extent > 1}
    return {axis: 2 * (extent - 1) * nbytes // topology.stride(axis) // extent for axis, extent in wide.items()}


@pytest.mark.parametrize("size", AXES)
def test_the_bytes_sent_are_those_of_the_formulas(ranks, size):
    ranks(size, _counted, size)


def _overlapping(rank, codec):
    size, topology = 4, Topology(local=2, node=2)
    codecs = {"node": codec} if codec else {}
    one = AllReduce(topology, "ring", codecs, segment_mb=SEGMENT_MB)
    other = AllReduce(Topology(ring=4), "two_shot", segment_mb=SEGMENT_MB)
    counts = [5003, 0, 1, 20_011, 97, 3001]
    inputs = [_gaussian(size, count, seed=number) for number, count in enumerate(counts)]
    alone = []
    for values in inputs:
        alone.append(values[rank].clone())
        one(alone[-1])
    exact = [_whole_numbers(size, count, torch.float32, count) for count in counts]
    results, sums, works = [], [], []
    for values, numbers in zip(inputs, exact, strict=True):
        results.append(values[rank].clone())
        sums.append(numbers[rank].clone())
        works += [one(results[-1], async_op=True), other(sums[-1], "sum", async_op=True)]
    for work in reversed(works):
        work.wait()
    assert all(map(torch.equal, results, alone))
    assert all(torch.equal(found, numbers.sum(0)) for found, numbers in zip(sums, exact, strict=True))
    one.close()
    other.close()


@pytest.mark.parametrize("codec", [None, "int8", "top_k"])
def test_calls_that_overlap_on_two_objects_do_not_disturb_each_other(ranks, codec):
    ranks(4, _overlapping, codec)


def _from_threads(rank):
    all_reduce = AllReduce(Topology(local=2, node=2), "ring", {"node": "int8"}, segment_mb=SEGMENT_MB)
    tensors = [torch.full((3001,), float(rank + number)) for number in range(8)]
    turns = [threading.Event() for _ in range(9)]
    failures = queue.SimpleQueue()

    def call(number):
        try:
            turns[number].wait()
            work = all_reduce(tensors[number], "sum", async_op=True)
            turns[number + 1].set()
            work.wait()
        except BaseException as error:
            failures.put(error)
            turns[number + 1].set()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    turns[0].set()
    for thread in threads:
        thread.join()
    assert failures.empty(), failures.get()
    for number, tensor in enumerate(tensors):
        torch.testing.assert_close(tensor, torch.full((3001,), 6.0 + 4 * number), rtol=0.01, atol=0)
    all_reduce.close()


def test_calls_may_come_from_several_threads_in_an_agreed_order(ranks):
    ranks(4, _from_threads)


def _scratch(all_reduce):
    """Bytes of scratch memory."""
    (engine,) = all_reduce._engines
    found = 0
    for lane in engine._lanes:
        held = [lane._free.get() for _ in range(lane._free.qsize())]
        for scratch in held:
            found += sum(kept.nbytes for kept in scratch._kept.values())
            lane._free.put(scratch)
    return found


def _steady(rank, codec):
    topology = Topology(local=2, node=2)
    all_reduce = AllReduce(topology, "two_shot", {"node": codec} if codec else {}, segment_mb=0.25)
    tensor = torch.randn(200_003)
    for _ in range(40):  # by then each piece of scratch memory has served for each purpose
        all_reduce(tensor)
    gc.collect()
    before, resident = _scratch(all_reduce), psutil.Process().memory_info().rss
    for _ in range(30):
        all_reduce(tensor)
    assert 0 < _scratch(all_reduce) <= 1.1 * before
    assert psutil.Process().memory_info().rss - resident < 4 << 20  # thirty calls with 0.8 MB each
    all_reduce.close()


@pytest.mark.parametrize("codec", [None, "top_k"])
def test_many_calls_in_a_row_take_no_more_memory(ranks, codec):
    ranks(4, _steady, codec)


def _not_finite(rank):
    for topology, codec in product([Topology(x=2, y=2)], CODECS):
        all_reduce = AllReduce(topology, "ring", {"y": codec}, segment_mb=SEGMENT_MB)
        for value, dtype in product((math.nan, math.inf, -math.inf), (torch.float32, torch.bfloat16)):
            tensor = _gaussian(4, 2003, dtype)[rank]
            if rank == 1:
                tensor[1500] = value
            all_reduce(tensor)
            why = f"{topology} {codec} {value} {dtype}"
            assert not tensor[1500].isfinite(), why
            _assert_same_bits(tensor.isfinite(), why)
            assert tensor[:256].isfinite().all(), why  # another segment
        all_reduce.close()


def test_nan_and_infinity_come_through_every_codec_on_every_rank(ranks):
    ranks(4, _not_finite)


def _lengths(rank, size, algorithm, codec):
    topology = Topology(ring=size)
    all_reduce = AllReduce(topology, algorithm, {"ring": codec} if codec else {}, timeout=1.0)
    dist.barrier()  # the short time-out is for the reduction, not for who comes late to it
    with pytest.raises(CommError, match=r"along ring failed on rank \d"):
        all_reduce(torch.ones(1000 if rank else 900))
    assert "rank" in _message(lambda: all_reduce(torch.ones(1000)))  # and it stays broken


def _message(call):
    with pytest.raises(CommError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(("algorithm", "codec"), [("ring", None), ("two_shot", None), ("ring", "int8")])
def test_tensors_of_different_lengths_end_in_an_error(ranks, algorithm, codec):
    ranks(2, _lengths, 2, algorithm, codec)


def _forms(rank):
    plain = AllReduce(Topology(ring=2), "ring")
    coded = AllReduce(Topology(ring=2), "ring", {"ring": "bf16"})
    for all_reduce in (plain, coded):
        whole = torch.zeros(40, 60)
        part = whole.t()[3:9, ::2]
        part += rank + 1.0
        all_reduce(part, "sum")
        assert torch.equal(part, torch.full((6, 20), 3.0)) and whole.sum() == 360
        scalar = torch.tensor(float(rank))
        all_reduce(scalar)
        assert scalar.item() == 0.5
        empty = torch.empty(0, 3)
        assert all_reduce(empty, async_op=True).wait() is None
        parameter = torch.full((5,), float(rank), requires_grad=True)
        all_reduce(parameter, "sum")
        assert torch.equal(parameter.detach(), torch.ones(5)) and parameter.requires_grad and parameter.is_leaf
        numbers = torch.full((5,), complex(rank, 1))
        all_reduce(numbers)
        assert torch.equal(numbers, torch.full((5,), complex(0.5, 1)))
        with pytest.raises(CommError, match="sparse"):
            all_reduce(torch.eye(3).to_sparse())
    with pytest.raises(CommError, match=r"floating-point numbers; found torch\.int64"):
        coded(torch.arange(3), "sum")
    plain.close()
    coded.close()


def test_any_form_of_dense_tensor_is_reduced_in_place_and_others_are_refused(ranks):
    ranks(2, _forms)


def _refused(rank):
    for algorithm in ("native", "ring"):
        all_reduce = AllReduce(Topology(ring=2), algorithm)
        with pytest.raises(CommError, match="sparse"):
            all_reduce(torch.eye(3).to_sparse())


def test_sparse_tensors_are_refused_whatever_the_algorithm(ranks):
    ranks(2, _refused)
