"""What `gradwire plan --link` foretells agrees with the cost model, and says what it rests on."""

import json

import pytest
from typer.testing import CliRunner

from gradwire.comm import CommError, Link, Topology, price
from gradwire.comm.algorithms import Ring
from gradwire.trainer.cli import app
from gradwire.trainer.config import compose, validate
from gradwire.trainer.errors import PredictionError
from gradwire.trainer.plan_network import foretell

HOSTS = ["launch.processes=2", "launch.hosts=2", "launch.endpoint=head:29400", "data=digits", "model=convnet"]


def config(*overrides):
    return validate(compose([*HOSTS, *overrides])).config


def test_the_backend_s_own_is_a_ring_at_the_slowest_link():
    network = foretell(config("comm=native"), ["ring=200mbit,1ms"])
    assert [scale.ranks for scale in network.scales] == [4, 40, 400, 4000]
    for scale in network.scales:
        topology = Topology(ring=scale.ranks)
        expected = price(topology, {"ring": Link(25e6, 1e-3)}, network.gradient_bytes, Ring()).seconds
        assert scale.communication == pytest.approx(expected)
        assert scale.way == "native"


def test_a_codec_on_the_slow_link_carries_a_quarter():
    links = ["node=200mbit,0us", "local=1000gbit,0us"]
    plain, coded = (
        foretell(config("comm=hierarchical", *codec), links) for codec in ([], ["comm/codec@comm.codecs.node=int8"])
    )
    for before, after in zip(plain.scales[:2], coded.scales[:2], strict=True):  # then chunks are shorter than a block
        assert 0.25 < after.communication / before.communication < 0.35
    # 2 ranks of a host share its link; each sends a quarter of the bytes to the other host, there and back
    assert plain.scales[0].communication == pytest.approx(plain.gradient_bytes / 25e6, rel=0.05)


def test_auto_is_the_fastest_of_what_there_is():
    links = ["node=200mbit,1ms"]
    auto = foretell(config("comm=auto", "comm/codec@comm.codecs.node=int8"), links).scales
    for comm in ("comm=hierarchical", "comm=native"):
        other = foretell(config(comm), links if comm == "comm=hierarchical" else ["ring=200mbit,1ms"]).scales
        assert all(mine.communication <= one.communication for mine, one in zip(auto, other, strict=True))


def test_a_step_lies_between_full_overlap_and_none():
    record = foretell(config("comm=hierarchical"), ["node=200mbit,1ms"], compute=0.5).to_record()
    for scale in record["scales"]:
        assert scale["step_overlapped"] == max(0.5, scale["communication"])
        assert scale["step_apart"] == 0.5 + scale["communication"]


@pytest.mark.parametrize(
    ("link", "error", "message"),
    [
        ("nodes=200mbit,1ms", PredictionError, "comm.topology has local, node"),
        ("node=fast", CommError, "200mbit,1ms"),
        ("node=0mbit,1ms", CommError, "bandwidth above 0"),
    ],
)
def test_a_link_that_cannot_be_is_refused(link, error, message):
    with pytest.raises(error, match=message):
        foretell(config("comm=hierarchical"), [link])


def test_the_command_prints_scales_and_assumptions(tmp_path):
    file = tmp_path / "plan.json"
    options = ["--link", "node=200mbit,1ms", "--compute", "0.5", "--json", str(file)]
    done = CliRunner().invoke(app, ["plan", *HOSTS, "comm=hierarchical", "run.length=20 updates", *options])
    assert done.exit_code == 0, done.output
    record = json.loads(file.read_text())["network"]
    assert record["compute"] == 0.5
    for scale in record["scales"]:
        assert f"{scale['times']:>5} × hosts" in done.output and scale["axes"] in done.output
    for assumption in record["assumptions"]:
        assert assumption in done.output
    assert any("0.2 Gbit/s and 1000 us along node, as given" in each for each in record["assumptions"])
    assert any("along local, not given" in each for each in record["assumptions"])
