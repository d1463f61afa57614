import math
from dataclasses import dataclass

import pytest
import torch

from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.codecs import Bf16, Int4, Int8, NoCodec
from gradwire.comm.fabric import Fabric
from gradwire.comm.links import CodecSpeed, Link
from gradwire.comm.pricing import price
from gradwire.comm.topology import Topology

NVLINK, NIC = Link(200e9, 5e-6), Link(25e9 / 8, 30e-6)
HOSTS = Topology(local=8, node=8)
HOST_LINKS = {"local": NVLINK, "node": NIC.shared(8)}
GB = 10**9


def _milliseconds(*arguments, **more):
    return 1e3 * price(*arguments, **more).seconds


@dataclass(frozen=True)
class Blocks(NoCodec):
    """The size of `bits` a value and a float32 scale for each block."""

    bits: int = 8
    block: int = 256

    @property
    def granule(self) -> int:
        return self.block

    def nbytes(self, count: int) -> int:
        return count * self.bits // 8 + 4 * math.ceil(count / self.block)


def test_the_worked_example_of_a_gigabyte():
    flat = Topology(ring=64)
    assert _milliseconds(flat, {"ring": NIC}, GB, Ring()) == pytest.approx(634, abs=0.5)
    assert _milliseconds(HOSTS, HOST_LINKS, GB, Ring()) == pytest.approx(569, abs=0.5)
    for codec, expected in ((Bf16(), 289), (Blocks(8, 256), 151), (Blocks(4, 128), 84)):
        assert _milliseconds(HOSTS, HOST_LINKS, GB, Ring(), {"node": codec}) == pytest.approx(expected, abs=0.5)


def test_our_codecs_are_no_dearer_than_the_example():
    for codec, expected in ((Int8(block=256), 151.5), (Int4(block=128), 84.0)):
        assert 0.96 * expected < _milliseconds(HOSTS, HOST_LINKS, GB, Ring(), {"node": codec}) <= expected


def test_the_worked_example_of_64_kilobytes():
    assert _milliseconds(Topology(ring=64), {"ring": NIC}, 65536, Ring()) == pytest.approx(3.8, abs=0.05)
    assert _milliseconds(HOSTS, HOST_LINKS, 65536, Ring()) == pytest.approx(0.53, abs=0.005)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17, 64, 1000])
def test_the_formulas_of_one_axis(ranks):
    link, nbytes = Link(1e9, 1e-5), 4 * ranks * 1000
    volume = 2 * (ranks - 1) / ranks * nbytes
    for algorithm, rounds, messages in (
        (Ring(), 2 * (ranks - 1), 2 * (ranks - 1)),
        (HalvingDoubling(), 2 * math.ceil(math.log2(ranks)), 2 * math.ceil(math.log2(ranks))),
        (TwoShot(), 2, 2 * (ranks - 1)),
    ):
        found = price(Topology(line=ranks), {"line": link}, nbytes, algorithm)
        assert found.rounds == rounds
        assert found.bytes == {"line": round(volume)}
        assert found.seconds == pytest.approx(messages * link.latency + volume / link.bandwidth)


def test_two_shots_with_a_codec_and_its_work():
    ranks, link, speed = 8, Link(1e9, 1e-5), CodecSpeed(encode=2e9, decode=4e9)
    nbytes = 4 * 8 * 1024
    found = price(Topology(node=ranks), {"node": link}, nbytes, Ring(), {"node": Blocks()}, {"node": speed})
    ratio = 4 / (1 + 4 / 256)
    wire = 2 * 7 * link.latency + 2 * 7 / 8 * nbytes / ratio / link.bandwidth
    work = (7 + 1) / 8 * nbytes / speed.encode + (7 + 8) / 8 * nbytes / speed.decode
    assert found.rounds == 2
    assert found.seconds == pytest.approx(wire + work)
    ((first, second),) = found.parts
    assert (first.kind, second.kind) == ("reduce_scatter", "all_gather")
    assert first.wire + second.wire == pytest.approx(wire)


def test_the_formula_of_a_torus():
    sizes, links = (4, 3, 2), (Link(8e9, 1e-6), Link(4e9, 2e-6), Link(1e9, 3e-6))
    topology, nbytes, inner, expected = Topology(x=4, y=3, z=2), 4 * 24 * 100, 1, 0.0
    for size, link in zip(sizes, links, strict=True):
        expected += 2 * (size - 1) * link.latency + 2 * (size - 1) / size * nbytes / inner / link.bandwidth
        inner *= size
    found = price(topology, dict(zip("xyz", links, strict=True)), nbytes, Ring())
    assert found.seconds == pytest.approx(expected) and found.rounds == 2 * (3 + 2 + 1)


CUBE, CABLE = Topology(x=4, y=4, z=4), Link(10e9, 5e-6)
CUBE_LINKS = dict.fromkeys("xyz", CABLE)


def test_a_cube_with_equal_links_beats_the_ring_by_far_at_64_kilobytes():
    inputs = torch.ones(64, 64 * 3 * 86)  # 66 KB, so that all chunks are equal
    cube = Fabric(CUBE, CUBE_LINKS).all_reduce(inputs, Ring(), rotate=True)
    ring = Fabric(Topology(ring=64), {"ring": CABLE}).all_reduce(inputs, Ring())
    assert torch.equal(cube.outputs, ring.outputs)
    assert cube.seconds <= 0.7 * ring.seconds
    assert cube.seconds == pytest.approx(price(CUBE, CUBE_LINKS, 4 * inputs.shape[1], Ring(), rotate=True).seconds)
    assert price(CUBE, CUBE_LINKS, 65536, Ring(), rotate=True).seconds < 0.17 * ring.seconds


def test_a_cube_with_rotated_axes_has_three_times_the_bandwidth_of_a_ring():
    nbytes = 4 * 3 * 64 * 10_000_000
    turned = price(CUBE, CUBE_LINKS, nbytes, Ring(), rotate=True)
    assert turned.rounds == 2 * 9
    assert turned.seconds == pytest.approx(18 * CABLE.latency + 2 * 63 / 64 * nbytes / (3 * CABLE.bandwidth))
    straight = price(CUBE, CUBE_LINKS, nbytes, Ring())
    assert straight.seconds == pytest.approx(18 * CABLE.latency + 2 * 63 / 64 * nbytes / CABLE.bandwidth)
    assert turned.bytes["x"] == turned.bytes["y"] == turned.bytes["z"] == sum(straight.bytes.values()) / 3


def test_parts_wait_for_a_link_that_serves_another():
    topology, links = Topology(x=2, y=2), {"x": Link(1e9, 0.0), "y": Link(1e8, 0.0)}
    nbytes = 4 * 8 * 1000
    found = price(topology, links, nbytes, Ring(), rotate=True)
    # y carries half of the second part, both quarters of the first, then that half back, and never rests
    on_y = 2 * (nbytes / 2 / 2 + nbytes / 2 / 4) / 1e8
    assert found.seconds == pytest.approx(on_y)
    assert Fabric(topology, links).all_reduce(torch.ones(4, 8000), Ring(), rotate=True).seconds == pytest.approx(on_y)


def test_a_rank_alone_and_an_empty_tensor_cost_nothing():
    for topology, nbytes in ((Topology(x=1), 100), (Topology(x=1, y=1), 100), (Topology(x=4), 0)):
        found = price(topology, dict.fromkeys(topology.axes, CABLE), nbytes, Ring(), rotate=True)
        assert (found.seconds, found.rounds, found.bytes) == (0.0, 0, {})


def test_thousands_of_hosts_are_priced():
    topology = Topology(local=8, node=4000)
    found = price(topology, HOST_LINKS, GB, Ring(), {"node": Int8()})
    assert found.rounds == 2 * 7 + 2
    assert price(Topology(ring=32000), {"ring": NIC}, GB, Ring()).rounds == 2 * 31999
