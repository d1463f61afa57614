"""Ranks on one host read from each other's memory, with the bits and the errors of those that send."""

import os
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed as dist

from gradwire.comm import AllReduce, Topology, neighbors, staged
from gradwire.comm.algorithms import HalvingDoubling, Ring, TwoShot
from gradwire.comm.codecs import Int4
from gradwire.comm.fabric import Fabric
from gradwire.comm.layout import segments
from gradwire.comm.links import Link
from gradwire.comm.neighbors import Neighbors

COUNT = 150_001  # of each rank
SEGMENT_MB = 0.25
SEED = 3
ALGORITHMS = {"two_shot": TwoShot(), "ring": Ring(), "halving_doubling": HalvingDoubling()}


def _values(size):
    return torch.randn(size, COUNT, generator=torch.Generator().manual_seed(1))


def _reduced(rank, topology, algorithm, codecs, monkeypatch=None):
    all_reduce = AllReduce(topology, algorithm, codecs, segment_mb=SEGMENT_MB)
    result = _values(topology.size)[rank].clone()
    all_reduce(result, "sum", seed=SEED)
    (engine,) = all_reduce._engines
    lines, sent = engine._lines, all_reduce.take_traffic()
    engine.leave()
    return result, lines, sent


def _simulated(topology, algorithm, codecs):
    fabric, inputs = Fabric(topology, dict.fromkeys(topology.axes, Link(1e9, 1e-6))), _values(topology.size)
    granule = 128 if codecs else 1
    ranges = segments(COUNT, int(SEGMENT_MB * 2**20) // 4, granule)
    parts = [
        fabric.all_reduce(inputs[:, start:stop], algorithm, codecs, "sum", False, SEED << 14).outputs
        for start, stop in ranges
    ]
    return torch.cat(parts, dim=1)


def _as_through_sockets(rank, size):
    topology = Topology(local=2, node=2) if size == 4 else Topology(local=size)
    for name, algorithm in ALGORITHMS.items():
        codecs = {"node": Int4()} if size == 4 else {}
        read, lines, traffic = _reduced(rank, topology, name, codecs)
        assert all(line.neighbors is not None for line in lines.values())
        assert torch.equal(read, _simulated(topology, algorithm, codecs)[rank]), name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staged, "find", lambda *_: None)
            sent, lines, expected = _reduced(rank, topology, name, codecs)
        assert all(line.neighbors is None for line in lines.values())
        assert torch.equal(read, sent), name
        assert {axis: cost.sent for axis, cost in traffic.items()} == {
            axis: cost.sent for axis, cost in expected.items()
        }


@pytest.mark.parametrize("size", [3, 4])
def test_what_neighbors_read_gives_the_simulated_bits_and_those_of_sockets(ranks, size):
    ranks(size, _as_through_sockets, size)


def _found(rank, what):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if what == "another host" and rank == 1:
            patch.setattr(neighbors, "_host", lambda: 7)
        if what == "refused" and rank == 1:
            patch.setattr(neighbors, "_read", _refuse)
        if what == "another process" and rank == 0:
            patch.setattr(os, "getpid", os.getppid)
        found = neighbors.find(dist.group.WORLD, "local", 20)
    assert (found is None) == (what != "all")
    said = [str(each.message) for each in told]
    if what == "refused" and rank == 1:
        assert said == ["ranks along local are on one host and exchange through sockets: planted"]
    elif what != "another process":
        assert not said


def _refuse(*_):
    raise RuntimeError("planted")


@pytest.mark.parametrize("what", ["all", "another host", "refused", "another process"])
def test_neighbors_are_those_that_can_all_read_each_other(ranks, what):
    ranks(3, _found, what)


def test_a_rank_that_withdrew_is_not_read():
    page, data, out = torch.tensor([5, 6, 0]), torch.arange(9.0), torch.zeros(9)
    found = Neighbors([os.getpid()], [page.data_ptr()], page)
    found.read(0, data.data_ptr(), out)
    assert torch.equal(out, data)
    found.withdraw()
    with pytest.raises(RuntimeError, match="gave up"):
        found.read(0, data.data_ptr(), out)


def test_a_rank_that_died_is_not_read():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    page, out = torch.zeros(3, dtype=torch.int64), torch.zeros(9)
    with pytest.raises(RuntimeError, match=f"process {process.pid} cannot be read: No such process"):
        Neighbors([process.pid], [page.data_ptr()], page).read(0, out.data_ptr(), out)


def _other_lengths(rank):
    all_reduce = AllReduce(Topology(local=2), "two_shot", timeout=3)
    values = torch.ones(100_000 if rank else 100_000 + 1021 * 2)
    dist.barrier()  # the short time-out is for the reduction, not for who comes late to it
    with pytest.raises(Exception, match="along local failed on rank"):
        all_reduce(values)


def test_another_length_is_an_error(own_ranks):
    own_ranks(2, _other_lengths)
