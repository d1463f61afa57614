"""Names stand for ways to reduce, and say what a host must send."""

import pytest

from gradwire.comm import Topology
from gradwire.comm.benchmark.contenders import Backend, Ours, PointToPoint, Shape, contender


def test_names_stand_for_contenders() -> None:
    assert contender("gloo") == Backend("gloo")
    assert contender("p2p/int4") == PointToPoint("p2p/int4", "int4")
    assert contender("ring/int8@0.5+rotate") == Ours("ring/int8@0.5+rotate", "ring", "int8", 0.5, True)
    with pytest.raises(ValueError, match="'ring//' is no contender"):
        contender("ring//")


def test_four_hosts_send_three_halves_of_the_tensor() -> None:
    assert Shape(4, 1, (("node", 4),)).payload(1000, None) == 6000


def test_the_last_axis_with_several_ranks_joins_the_hosts() -> None:
    assert Shape.of(Topology(local=4, node=2)) == Shape(2, 4, (("local", 4), ("node", 2)))
    loopback = Shape.of(Topology(local=3, node=1))
    assert (loopback.hosts, loopback.ranks_per_host, loopback.slow_axis) == (3, 1, "local")
