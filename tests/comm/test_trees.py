"""Broadcast, reduce, scatter and gather by trees, on real ranks."""

import pytest
import torch

from gradwire.comm import CommError, Fabric, Link, Topology, broadcast, gather, reduce, scatter

TOPOLOGIES = [Topology(ring=4), Topology(local=2, node=2), Topology(ring=3), Topology(x=3, y=2)]
LINK = Link(bandwidth=1e9, latency=1e-5)


def _inputs(ranks, count):
    return torch.stack([torch.arange(count, dtype=torch.float32) + 100 * rank for rank in range(ranks)])


def _as_simulated(rank, topology):
    fabric = Fabric(topology, dict.fromkeys(topology.axes, LINK))
    for count in (0, 1, 7, 50):
        inputs = _inputs(topology.size, count)
        for root in (0, topology.size - 1):
            for kind, simulate in (
                (broadcast, fabric.broadcast),
                (reduce, fabric.reduce),
                (scatter, fabric.scatter),
                (gather, fabric.gather),
            ):
                tensor = inputs[rank].clone()
                kind(tensor, root, topology)
                assert torch.equal(tensor, simulate(inputs, root).outputs[rank]), (kind.__name__, count, root)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_real_ranks_hold_what_the_simulated_ones_do(ranks, topology):
    ranks(topology.size, _as_simulated, topology)


def _results(rank):
    whole = torch.arange(10.0) if rank == 1 else torch.zeros(10)
    piece = scatter(whole, root=1)
    assert piece.tolist() == [[0.0, 1, 2], [3.0, 4, 5], [6.0, 7], [8.0, 9]][rank]
    collected = torch.zeros(4)
    collected[rank] = rank + 1.0
    assert gather(collected, root=2).tolist() == [rank + 1.0]
    if rank == 2:
        assert collected.tolist() == [1.0, 2, 3, 4]
    total = torch.full((2, 3), float(rank))
    reduce(total, root=3)
    if rank == 3:
        assert total.tolist() == [[6.0] * 3] * 2
    broadcast(total, root=3)
    assert total.tolist() == [[6.0] * 3] * 2
    number = torch.tensor(rank)
    broadcast(number, root=2)
    assert number.item() == 2


def test_what_comes_out(ranks):
    ranks(4, _results)


def _refused(rank):
    with pytest.raises(CommError, match="expected a rank from 0 to 1"):
        broadcast(torch.zeros(2), root=2)
    with pytest.raises(CommError, match="contiguous"):
        reduce(torch.zeros(4, 4).t())


def test_bad_calls_are_refused(ranks):
    ranks(2, _refused)


def test_a_single_process_keeps_what_it_has():
    tensor = torch.arange(3.0)
    broadcast(tensor)
    reduce(tensor)
    assert scatter(tensor).tolist() == gather(tensor).tolist() == [0.0, 1, 2]
