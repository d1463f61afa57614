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


@given(st.dictionaries(st.sampled_from("xyzt"), st.integers(1, 9), min_size=1))
def test_a_topology_is_read_back_from_text(axes):
    text = ",".join(f"{name}={size}" for name, size in axes.items())
    assert Topology.parse(text) == Topology(**axes)


def test_spaces_in_the_text_do_not_matter():
    assert Topology.parse(" local = 8 , node = 4 ") == Topology(local=8, node=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' in '' is no axis; expected a list like local=8,node=4"),
        ("8x4", "'8x4' in '8x4' is no axis"),
        ("local=8,", "'' in 'local=8,' is no axis"),
        ("local=-1", "is no axis"),
        ("local=1.5", "is no axis"),
        ("local=²", "is no axis"),
        ("a b=2", "is no axis"),
        ("x=2,x=3", "axis x stands twice"),
        ("x=0", "axis x has 0 ranks"),
    ],
)
def test_text_that_is_no_topology_is_refused(text, message):
    with pytest.raises(TopologyError, match=message):
        Topology.parse(text)


def test_lines_join_ranks_that_differ_along_one_axis():
    topology = Topology(x=2, y=3, z=2)
    assert [topology.stride(axis) for axis in "xyz"] == [1, 2, 6]
    assert topology.coordinates(9) == {"x": 1, "y": 1, "z": 1}
    assert topology.line(9, "x") == (8, 9)
    assert topology.line(9, "y") == (7, 9, 11)
    assert topology.line(9, "z") == (3, 9)
    assert topology.lines("y") == ((0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_rank_is_on_one_line_of_each_axis(sizes):
    topology = Topology(**{f"axis{number}": size for number, size in enumerate(sizes)})
    for axis in topology.axes:
        assert sorted(rank for line in topology.lines(axis) for rank in line) == list(range(topology.size))
        for line in topology.lines(axis):
            for position, rank in enumerate(line):
                assert topology.line(rank, axis) == line
                assert topology.coordinates(rank)[axis] == position


def test_ranks_and_axes_that_do_not_exist_are_refused():
    topology = Topology(x=2, y=2)
    for call in (topology.stride, topology.lines, lambda axis: topology.line(0, axis)):
        with pytest.raises(TopologyError, match="there is no axis 'z' in x=2 × y=2; expected one of x, y"):
            call("z")
    for rank in (-1, 4):
        with pytest.raises(TopologyError, match=f"there is no rank {rank} in x=2 × y=2; expected 0 to 3"):
            topology.coordinates(rank)


def _meshes(rank):
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "local"))
    assert list(Topology.from_mesh(mesh).axes.items()) == [("local", 2), ("node", 2)]
    assert list(Topology.from_mesh(init_device_mesh("cpu", (4,))).axes.items()) == [("dim0", 4)]
    assert Topology.from_mesh(mesh["node"]) == Topology(node=2)
    with pytest.raises(TopologyError, match=r"ranks in the order \[0, 2, 1, 3\]"):
        Topology.from_mesh(DeviceMesh("cpu", [[0, 2], [1, 3]]))


def test_a_mesh_has_its_last_dimension_innermost(ranks):
    ranks(4, _meshes)
