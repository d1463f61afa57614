import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from gradwire.comm import AllReduce, Topology, TopologyError


def test_axes_keep_their_order_and_multiply():
    topology = Topology(local=8, node=4)
    assert topology.size == 32
    assert list(topology.axes.items()) == [("local", 8), ("node", 4)]
    assert repr(topology) == "Topology(local=8, node=4)" and str(topology) == "local=8 × node=4"
    assert topology == Topology(local=8, node=4) != Topology(node=4, local=8)
    assert len({topology, Topology(local=8, node=4)}) == 1


@given(st.dictionaries(st.sampled_from("xyzt"), st.integers(1, 9), min_size=1), st.integers(1, 10_000))
def test_check_accepts_exactly_the_product(axes, world):
    topology = Topology(**axes)
    if world == topology.size:
        topology.check(world)
    else:
        with pytest.raises(TopologyError, match=f"makes {topology.size} ranks and there are {world}"):
            topology.check(world)
    topology.check(topology.size)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2", None])
def test_an_axis_is_a_whole_number(size):
    with pytest.raises(TopologyError, match="axis local has"):
        Topology(local=size)


def test_there_is_at_least_one_axis():
    with pytest.raises(TopologyError, match="at least one axis"):
        Topology()


@pytest.fixture
def no_launcher(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone(no_launcher):
    assert Topology.detect() == Topology(local=1, node=1)


def test_what_the_launcher_says(no_launcher, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "32")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert Topology.detect() == Topology(local=8, node=4)


def _detected(rank, monkeypatched, hosts, expected):
    import os
    import platform

    os.environ.pop("LOCAL_WORLD_SIZE", None)
    if monkeypatched:
        os.environ["LOCAL_WORLD_SIZE"] = str(monkeypatched[rank])
    real, platform.node = platform.node, lambda: hosts[rank]
    try:
        if isinstance(expected, str):
            with pytest.raises(TopologyError, match=expected):
                Topology.detect()
        else:
            assert Topology.detect() == expected
    finally:
        platform.node = real
        os.environ.pop("LOCAL_WORLD_SIZE", None)


@pytest.mark.parametrize(
    ("launcher", "hosts", "expected"),
    [
        (None, "aaaa", Topology(local=4, node=1)),
        (None, "aabb", Topology(local=2, node=2)),
        (None, "abcd", Topology(local=1, node=4)),
        (None, "aaab", "unequal numbers of ranks"),
        (None, "abab", "not consecutive .hosts by rank: 0, 1, 0, 1"),
        ([2, 2, 2, 2], "aaaa", Topology(local=2, node=2)),
        ([3, 3, 3, 1], "aaaa", "unequal numbers of ranks"),
    ],
)
def test_ranks_find_out_who_shares_a_host(ranks, launcher, hosts, expected):
    ranks(4, _detected, launcher, hosts, expected)


def _mismatch(rank):
    AllReduce(Topology(x=2, y=2))
    with pytest.raises(TopologyError, match="x=2 × y=3 makes 6 ranks and there are 4"):
        AllReduce(Topology(x=2, y=3))
    pair = dist.new_group([0, 1])
    if rank < 2:
        AllReduce(Topology(ring=2), group=pair)


def test_the_all_reduce_wants_a_topology_of_its_size(ranks):
    ranks(4, _mismatch)
