"""The simulated fabric: exact sums everywhere, counted rounds and bytes, slow and lost ranks, codecs."""

import math
from dataclasses import dataclass
from itertools import cycle, islice, product

import numpy as np
import pytest
import torch

from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.codecs import Codec, Int8
from gradwire.comm.errors import CollectiveError, CommError, TopologyError
from gradwire.comm.fabric import Fabric
from gradwire.comm.links import CodecSpeed, Link
from gradwire.comm.pieces import cut
from gradwire.comm.pricing import price
from gradwire.comm.program import encode_seed, phases
from gradwire.comm.topology import Topology

ALGORITHMS = [Ring(), Ring(bidirectional=True), TwoShot(), HalvingDoubling()]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.complex64]
LINK = Link(bandwidth=1e9, latency=1e-6)


def _topologies(ranks):
    """All of one to three axes with so many ranks, and one with axes of a single rank."""
    found = [sizes for sizes in product(range(2, ranks + 1), repeat=2) if math.prod(sizes) == ranks]
    found += [sizes for sizes in product(range(2, ranks + 1), repeat=3) if math.prod(sizes) == ranks]
    return [_topology(ranks), _topology(1, ranks, 1), *(_topology(*sizes) for sizes in found)]


def _topology(*sizes):
    return Topology(**dict(zip("xyz", sizes, strict=False)))


def _fabric(topology, **more):
    return Fabric(topology, dict.fromkeys(topology.axes, LINK), **more)


def _inputs(ranks, count, dtype=torch.float32, seed=0):
    """Whole numbers of which any partial sum is at most 256, and so exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    most = max(1, 256 // ranks)
    values = torch.randint(-most, most + 1, (ranks, count), generator=generator)
    values[256:] = 0
    return values[torch.randperm(ranks, generator=generator)].to(dtype)


def _expect_sum(topology, algorithm, inputs, op="sum", rotate=False):
    found = _fabric(topology).all_reduce(inputs, algorithm, op=op, rotate=rotate)
    expected = inputs.sum(0).to(inputs.dtype)
    expected = expected / topology.size if op == "mean" else expected
    assert found.outputs.dtype == inputs.dtype
    assert torch.equal(found.outputs, expected.expand(topology.size, -1)), (topology, algorithm, inputs.shape, rotate)
    return found


def _rounds(topology, algorithm):
    return 2 * sum(algorithm.rounds(size) for size in topology.axes.values())


def _bytes(topology, count, itemsize):
    """Of all ranks together, by axis: what an all-reduce over axes must send, whatever divides or does not."""
    outer = list(topology.axes.values())
    return {
        axis: 2 * (size - 1) * count * itemsize * math.prod(outer[place + 1 :])
        for place, (axis, size) in enumerate(topology.axes.items())
        if size > 1
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("ranks", range(1, 18))
def test_every_rank_gets_the_exact_sum(ranks, algorithm):
    kinds = islice(cycle([*product(DTYPES, ["sum"]), *product(DTYPES[:4], ["mean"])]), ranks, None)
    for topology, rotate, count in product(_topologies(ranks), (False, True), (0, 1, 13, 97)):
        dtype, op = next(kinds)
        _expect_sum(topology, algorithm, _inputs(ranks, count, dtype), op, rotate)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(1,), (2,), (7,), (16,), (3, 5), (2, 3, 2)], ids=str)
def test_in_every_dtype_the_sum_and_the_mean_are_exact(sizes, dtype):
    topology = _topology(*sizes)
    for algorithm, rotate in product(ALGORITHMS, (False, True)):
        inputs = _inputs(topology.size, 53, dtype)
        _expect_sum(topology, algorithm, inputs, rotate=rotate)
        if dtype.is_floating_point or dtype.is_complex:
            _expect_sum(topology, algorithm, inputs, "mean", rotate)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("sizes", [(64,), (8, 8), (4, 4, 4), (256,), (16, 16), (8, 4, 8)], ids=str)
def test_64_and_256_ranks(sizes, algorithm):
    topology = _topology(*sizes)
    found = _expect_sum(topology, algorithm, _inputs(topology.size, 521), rotate=len(sizes) > 1)
    assert found.rounds == _rounds(topology, algorithm)


@pytest.mark.parametrize(
    ("sizes", "algorithm"),
    [
        ((32, 32), Ring()),
        ((8, 8, 16), Ring(bidirectional=True)),
        ((8, 8, 16), TwoShot()),
        ((1024,), HalvingDoubling()),
        ((64, 64), Ring()),
        ((16, 16, 16), Ring()),
        ((16, 16, 16), TwoShot()),
        ((4096,), HalvingDoubling()),
    ],
    ids=str,
)
def test_1024_and_4096_ranks(sizes, algorithm):
    topology = _topology(*sizes)
    found = _expect_sum(topology, algorithm, _inputs(topology.size, 1031), op="mean")
    assert found.rounds == _rounds(topology, algorithm)
    assert {axis: int(sent.sum()) for axis, sent in found.bytes.items()} == _bytes(topology, 1031, 4)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("sizes", [(1,), (2,), (5,), (8,), (17,), (1, 6), (4, 3), (2, 3, 2)], ids=str)
def test_rounds_and_bytes_are_the_formulas(sizes, algorithm):
    topology = _topology(*sizes)
    for count, dtype in product((60, 97), (torch.float32, torch.bfloat16)):
        found = _fabric(topology).all_reduce(_inputs(topology.size, count, dtype), algorithm)
        assert found.rounds == _rounds(topology, algorithm)
        assert {axis: int(sent.sum()) for axis, sent in found.bytes.items()} == _bytes(topology, count, dtype.itemsize)


def test_a_ring_sends_its_share_from_every_rank():
    found = _fabric(Topology(ring=5)).all_reduce(_inputs(5, 100))
    assert found.bytes["ring"].tolist() == [2 * 4 * 20 * 4] * 5


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("sizes", [(6,), (3, 4), (2, 3, 2)], ids=str)
def test_additions_are_those_of_ranks_that_follow_the_rounds_one_by_one(sizes, algorithm):
    topology = _topology(*sizes)
    inputs = torch.randn(topology.size, 101, generator=torch.Generator().manual_seed(1))
    found = _fabric(topology).all_reduce(inputs, algorithm).outputs
    assert torch.equal(found, _one_by_one(topology, algorithm, inputs))
    assert torch.equal(found, found[:1].expand_as(found))


def _one_by_one(topology, algorithm, inputs, codecs=None, seed=0):
    """The same all-reduce as ranks would do it, each with its own ranges, messages and additions."""
    data = list(inputs.clone())
    held = [[(0, inputs.shape[1])] for _ in data]
    for phase in phases(topology, algorithm, codecs):
        size, pieces = topology.axes[phase.axis], phase.algorithm.pieces
        unit = math.lcm(1, *(codec.granule for codec in (codecs or {}).values()))
        if not phase.adds:
            held = [ranges[:-1] for ranges in held]
        chunks = [cut(*ranges[-1], size * pieces, unit) for ranges in held]
        for index in range(phase.algorithm.rounds(size)):
            turn, before = phase.round(size, index), [row.clone() for row in data]
            for rank, row in enumerate(data):
                line = topology.line(rank, phase.axis)
                for source, start, count in turn.receives(line.index(rank)):
                    for low, high in (chunks[rank][chunk % len(chunks[rank])] for chunk in range(start, start + count)):
                        arrived = before[line[source]][low:high]
                        if phase.codec is not None and high > low:
                            arrived = _through(phase, arrived, seed, low, source)
                        row[low:high] = row[low:high] + arrived if phase.adds else arrived
                own = chunks[rank][line.index(rank)]
                if phase.codec is not None and not phase.adds and own[1] > own[0]:
                    row[slice(*own)] = _through(phase, row[slice(*own)].clone(), seed, own[0], line.index(rank))
        if phase.adds:
            for rank, ranges in enumerate(held):
                mine = topology.coordinates(rank)[phase.axis] * pieces
                ranges.append((chunks[rank][mine][0], chunks[rank][mine + pieces - 1][1]))
    return torch.stack(data)


def _through(phase, values, seed, start, position):
    payload, out = torch.empty(phase.codec.nbytes(len(values)), dtype=torch.uint8), torch.empty_like(values)
    phase.codec.encode(values, payload, seed=encode_seed(phase.codec, seed << 20, start, position, phase.adds))
    phase.codec.decode(payload, out)
    return out


@dataclass(frozen=True)
class Jittered(Codec):
    """bf16 with a little noise from the seed."""

    name = "jittered"
    granule: int = 4

    def nbytes(self, count: int) -> int:
        return 2 * count

    def encode(self, values, payload, *, seed=0, error=None):
        noise = torch.rand(len(values), generator=torch.Generator().manual_seed(seed)) * 0.01
        payload.copy_((values + noise).to(torch.bfloat16).view(torch.uint8))

    def decode(self, payload, out):
        out.copy_(payload.view(torch.bfloat16))

    def decode_add(self, payload, out):
        out.add_(payload.view(torch.bfloat16))


@pytest.mark.parametrize("sizes", [(2,), (5,), (3, 4), (2, 3, 2)], ids=str)
def test_a_coded_axis_is_two_shots_and_leaves_the_same_bits_everywhere(sizes):
    topology = _topology(*sizes)
    inputs = torch.randn(topology.size, 101, generator=torch.Generator().manual_seed(2))
    for axis in topology.axes:
        codecs = {axis: Jittered()}
        found = _fabric(topology).all_reduce(inputs, Ring(), codecs, seed=7)
        assert torch.equal(found.outputs, _one_by_one(topology, Ring(), inputs, codecs, seed=7))
        assert torch.equal(found.outputs, found.outputs[:1].expand_as(found.outputs))
        assert (found.outputs[0] - inputs.sum(0)).norm() < 0.05 * inputs.sum(0).norm()
        plain = _bytes(topology, 101, 4)[axis]
        assert found.bytes[axis].sum() == plain / 2
        rotated = _fabric(topology).all_reduce(inputs, Ring(), codecs, rotate=True).outputs
        assert torch.equal(rotated, rotated[:1].expand_as(rotated))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_int8_between_nodes_of_a_mean(dtype):
    topology = Topology(local=4, node=3)
    inputs = torch.randn(12, 4096, generator=torch.Generator().manual_seed(3)).to(dtype)
    found = _fabric(topology).all_reduce(inputs, Ring(), {"node": Int8()}, op="mean")
    exact = inputs.double().mean(0)
    assert torch.equal(found.outputs, found.outputs[:1].expand_as(found.outputs))
    assert (found.outputs[0].double() - exact).norm() < 0.012 * exact.norm()
    assert found.bytes["node"].sum() <= 0.26 * _bytes(topology, 4096, 4)["node"]


TREE_SIZES = [*((ranks,) for ranks in range(1, 18)), (3, 5), (2, 3, 2), (64,), (256,), (16, 16)]


@pytest.mark.parametrize("sizes", TREE_SIZES, ids=str)
def test_trees_in_as_many_rounds_as_the_logarithm(sizes):
    topology = _topology(*sizes)
    rounds = sum(math.ceil(math.log2(size)) for size in sizes)
    for root in {0, topology.size // 2, topology.size - 1}:
        _expect_trees(topology, root, 521, rounds)


@pytest.mark.parametrize("sizes", [(1024,), (4096,), (16, 16, 16)], ids=str)
def test_trees_over_1024_and_4096_ranks(sizes):
    topology = _topology(*sizes)
    _expect_trees(topology, topology.size // 3, 1031, int(math.log2(topology.size)), pieces=range(0, topology.size, 37))


def _expect_trees(topology, root, count, rounds, pieces=None):
    fabric, inputs = _fabric(topology), _inputs(topology.size, count)
    broadcast, reduced = fabric.broadcast(inputs, root), fabric.reduce(inputs, root)
    assert torch.equal(broadcast.outputs, inputs[root].expand_as(inputs))
    assert torch.equal(reduced.outputs[root], inputs.sum(0))
    scattered, gathered = fabric.scatter(inputs, root), fabric.gather(inputs, root)
    ranges = cut(0, count, topology.size)
    for rank in pieces or range(topology.size):
        piece = slice(*ranges[rank])
        assert torch.equal(scattered.outputs[rank, piece], inputs[root, piece])
        assert torch.equal(gathered.outputs[root, piece], inputs[rank, piece])
    assert broadcast.rounds == reduced.rounds == rounds
    if count >= topology.size:
        assert scattered.rounds == gathered.rounds == rounds
    once = LINK.seconds(4 * count)
    assert broadcast.seconds == pytest.approx(rounds * once) == reduced.seconds
    assert scattered.seconds <= rounds * once


def test_a_scatter_over_a_power_of_two_takes_its_formula():
    found = _fabric(Topology(line=8)).scatter(_inputs(8, 800), root=3)
    assert found.seconds == pytest.approx(3 * LINK.latency + 7 / 8 * 3200 / LINK.bandwidth)


def test_a_slow_rank_holds_up_a_ring_in_every_round():
    inputs = _inputs(6, 600)
    once = LINK.seconds(400)
    found = _fabric(Topology(ring=6), slow={2: 4.0}).all_reduce(inputs)
    assert found.seconds == pytest.approx(10 * 4 * once)
    assert found.done[2] == pytest.approx(10 * 4 * once)
    assert torch.equal(found.outputs[5], inputs.sum(0))


def test_a_slow_rank_holds_up_only_what_waits_for_it():
    fast = _fabric(Topology(x=2, y=2)).all_reduce(_inputs(4, 400))
    slow = _fabric(Topology(x=2, y=2), slow={3: 1.5}).all_reduce(_inputs(4, 400))
    assert fast.seconds < slow.seconds <= 1.5 * fast.seconds


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_a_lost_rank_is_named_with_axis_and_round(algorithm):
    topology = Topology(local=3, node=4)
    for phase, each in enumerate(phases(topology, algorithm)):
        rounds = algorithm.rounds(topology.axes[each.axis])
        for index in range(rounds):
            what = (
                f"round {index + 1} of {rounds} of the {each.kind.replace('_', '-')} along {each.axis} failed on rank"
            )
            with pytest.raises(CollectiveError, match=rf"{what} \d+: rank 7 does not answer"):
                _fabric(topology, lost={7: (phase, index)}).all_reduce(_inputs(12, 120), algorithm)


def test_a_rank_lost_after_the_last_round_is_not_missed():
    found = _fabric(Topology(ring=3), lost={1: (2, 0)}).all_reduce(_inputs(3, 9))
    assert torch.equal(found.outputs[0], _inputs(3, 9).sum(0))


def test_a_tree_misses_its_lost_rank_too():
    with pytest.raises(CollectiveError, match="round 3 of 3 of the broadcast along line failed on rank 4: rank 5 does"):
        _fabric(Topology(line=8), lost={5: (0, 0)}).broadcast(_inputs(8, 9))


def test_codec_work_takes_time_on_slow_ranks_more():
    topology, inputs, codecs = Topology(node=4), _inputs(4, 400), {"node": Jittered()}
    speeds = {"node": CodecSpeed(encode=1e6, decode=2e6)}
    work = (3 + 1) * 400 / 1e6 + (3 + 4) * 400 / 2e6
    wire = 2 * 3 * LINK.seconds(200)
    found = _fabric(topology, speeds=speeds).all_reduce(inputs, Ring(), codecs)
    assert found.seconds == pytest.approx(work + wire)
    assert _fabric(topology, speeds=speeds, slow={0: 2.0}).all_reduce(inputs, Ring(), codecs).seconds > work + wire


def test_the_price_is_the_simulated_time():
    for sizes, algorithm in product([(8,), (3,), (4, 4), (2, 3, 2), (4, 4, 4)], ALGORITHMS):
        topology = _topology(*sizes)
        links = {axis: Link(1e9 / (place + 1), 1e-6 * (place + 1)) for place, axis in enumerate(topology.axes)}
        count = 4 * len(sizes) * math.prod(sizes) * 2 ** len(sizes)
        for rotate, codecs in product((False, True), ({}, {"x": Jittered()})):
            speeds = {"x": CodecSpeed(1e9, 2e9)}
            found = Fabric(topology, links, speeds=speeds).all_reduce(
                _inputs(topology.size, count), algorithm, codecs, rotate=rotate
            )
            cost = price(topology, links, 4 * count, algorithm, codecs, speeds, rotate=rotate)
            assert found.seconds == pytest.approx(cost.seconds, rel=1e-12), (topology, algorithm, rotate, codecs)
            assert {axis: int(sent.max()) for axis, sent in found.bytes.items()} == cost.bytes
            assert found.rounds == cost.rounds


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_where_chunks_differ_the_price_is_a_bound(algorithm):
    for sizes, count in product([(7,), (16,), (3, 5), (2, 3, 2)], (1, 5, 97, 1031)):
        topology = _topology(*sizes)
        for rotate in (False, True):
            found = _fabric(topology).all_reduce(_inputs(topology.size, count), algorithm, rotate=rotate)
            cost = price(topology, dict.fromkeys(topology.axes, LINK), 4 * count, algorithm, rotate=rotate)
            assert found.seconds <= cost.seconds * (1 + 1e-12)
            assert found.rounds == cost.rounds
            assert algorithm.pieces == 2 or found.seconds == pytest.approx(cost.seconds)


def test_two_directions_halve_what_a_bidirectional_ring_takes():
    topology, inputs = Topology(ring=6), _inputs(6, 1200)
    fabric = Fabric(topology, {"ring": Link(1e9, 1e-6, directions=2)})
    assert fabric.all_reduce(inputs, Ring()).seconds == pytest.approx(10 * LINK.seconds(800))
    assert fabric.all_reduce(inputs, Ring(bidirectional=True)).seconds == pytest.approx(10 * LINK.seconds(400))


def test_inputs_are_left_as_they_are():
    inputs = _inputs(4, 10)
    before = inputs.clone()
    _fabric(Topology(ring=4)).all_reduce(inputs)
    assert torch.equal(inputs, before)


def test_what_does_not_fit_is_refused():
    fabric = _fabric(Topology(local=2, node=2))
    with pytest.raises(TopologyError, match=r"local=2 × node=2 takes \[4, n\] inputs; found \[3, 5\]"):
        fabric.all_reduce(torch.zeros(3, 5))
    with pytest.raises(TopologyError, match=r"takes \[4, n\] inputs; found \[4\]"):
        fabric.broadcast(torch.zeros(4))
    with pytest.raises(TopologyError, match="a codec is given for axis 'rack'; local=2 × node=2 has local, node"):
        fabric.all_reduce(torch.zeros(4, 5), Ring(), {"rack": Jittered()})
    with pytest.raises(TopologyError, match="axis node has neither an algorithm nor a codec"):
        fabric.all_reduce(torch.zeros(4, 5), {"local": Ring()})
    with pytest.raises(TopologyError, match="axis node of local=2 × node=2 has no link"):
        Fabric(Topology(local=2, node=2), {"local": LINK})
    with pytest.raises(CommError, match="op is 'max'"):
        fabric.all_reduce(torch.zeros(4, 5), op="max")
    with pytest.raises(CommError, match=r"mean of torch\.int64"):
        fabric.all_reduce(torch.zeros(4, 5, dtype=torch.int64), op="mean")
    with pytest.raises(TopologyError, match="there is no rank 4"):
        fabric.broadcast(torch.zeros(4, 5), root=4)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "directions"),
    [(0, 1e-6, 1), (-1, 1e-6, 1), (math.nan, 0, 1), (1e9, -1, 1), (1e9, math.inf, 1), (1e9, 0, 3)],
)
def test_a_link_that_cannot_be_is_refused(bandwidth, latency, directions):
    with pytest.raises(CommError, match="a link has"):
        Link(bandwidth, latency, directions)


def test_ranks_share_a_link():
    assert Link(1e9, 1e-6).shared(8) == Link(1.25e8, 1e-6)
    assert np.isclose(Link(1e9, 1e-6).seconds(1000, messages=2), 3e-6)
