"""What is measured of links and codecs. How fast this machine is, is not asserted, but for a link of known rate."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.comm import Link, Topology, TopologyError, codec_speed, codecs, measure
from gradwire.comm.group import gather_rows

Call = Callable[..., Any]


def equal_everywhere(*numbers: float) -> None:
    rows = gather_rows(torch.tensor(numbers, dtype=torch.float64), None)
    assert (rows == rows[0]).all(), rows


def links(rank: int) -> None:
    topology = Topology(local=2, single=1, node=2)
    found = measure(topology)
    assert list(found) == ["local", "node"]
    for link in found.values():
        assert 0 < link.latency < 10 and 0 < link.bandwidth < math.inf
        equal_everywhere(link.latency, link.bandwidth)
    with pytest.raises(TopologyError):
        measure(Topology(ring=3))


def test_every_axis_is_measured_and_all_ranks_know_the_same(ranks: Call) -> None:
    ranks(4, links)


def part_of_the_world(rank: int) -> None:
    group = dist.new_group([1, 2])
    if rank in (1, 2):
        assert list(measure(Topology(ring=2), group)) == ["ring"]
    dist.barrier()


def test_a_group_is_measured_by_itself(own_ranks: Call) -> None:
    own_ranks(4, part_of_the_world)


def speeds(rank: int) -> None:
    speed = codec_speed(codecs.named("fp16"))
    assert 0 < speed.encode < math.inf and 0 < speed.decode < math.inf
    equal_everywhere(speed.encode, speed.decode)
    assert codec_speed(codecs.named("none")).encode == math.inf


def test_the_speed_of_a_codec_is_that_of_the_slowest_rank(ranks: Call) -> None:
    ranks(2, speeds)


def node_link(rank: int) -> Link:
    return measure(Topology(local=2, node=2))["node"]


def test_a_link_that_two_ranks_share_shows_the_share_of_each(lab_ranks: Call) -> None:
    found = lab_ranks(2, 2, node_link)
    assert len(set(found)) == 1
    # 200 Mbit/s are 25 MB/s. A loaded machine may show less, never twice as much.
    assert 2e6 < found[0].bandwidth < 25e6


def test_a_process_alone_has_no_links() -> None:
    assert measure(Topology(ring=1)) == {}
