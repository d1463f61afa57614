"""`algorithm="auto"`: what it may choose, that all ranks choose the same, and that choices are kept and repeated."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradwire.comm import AllReduce, Choice, CodecSpeed, CommError, Link, Topology, attach, codecs, tuning
from gradwire.comm.choices import NATIVE, Way, size_class
from gradwire.comm.codecs import Codec, Int8
from gradwire.comm.layout import segments
from gradwire.comm.measure import slowest_once
from gradwire.comm.prediction import Costs, predict, ways
from gradwire.comm.tuning import Tuner

Call = Callable[..., Any]
CPU = torch.device("cpu")
MB = 1 << 20


@dataclass(frozen=True)
class Uncompiled(Int8):
    """int8 that takes no time to get ready."""

    def prepare(self, device: torch.device | str = "cpu") -> None:
        """Nothing."""


# Choices as data


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(0, 2), (1, 2), (4, 2), (5, 2), (6, 3), (8, 3), (11, 3), (12, 4), (MB, 20), (25 * MB, 25), (2**40, 28)],
)
def test_a_size_belongs_to_the_nearest_power_of_two(nbytes: int, expected: int) -> None:
    assert size_class(nbytes) == expected


@pytest.mark.parametrize(
    "way",
    [NATIVE, Way("ring"), Way("two_shot", 2.5, coded=True), Way("native", 1, True, True), Way("two_shot", 16, True)],
)
def test_a_way_is_read_back_from_its_text(way: Way) -> None:
    assert Way.parse(str(way)) == way
    choice = Choice(23, way, "for a reason", 1.25)
    assert Choice.load(choice.state_dict()) == choice


@pytest.mark.parametrize("text", ["", "ring", "ring@", "ring/int8@4", "ring@4+turned", "ring@-1"])
def test_text_that_names_no_way_is_refused(text: str) -> None:
    with pytest.raises(CommError, match="no way to reduce"):
        Way.parse(text)


# Candidates and their prices


def test_no_two_candidates_do_the_same() -> None:
    small = list(ways(Topology(local=2, node=2), {}, 4096, CPU))
    assert small == [Way("two_shot", 4.0, False), Way("two_shot", 4.0, True)]
    large = list(ways(Topology(ring=4), {}, 64 * MB, CPU))
    assert len(large) == len(set(large)) == 4 * 4
    assert not any(way.coded or way.rotate for way in large)


def test_codecs_are_a_permission() -> None:
    permitted = list(ways(Topology(local=2, node=2), {"node": Int8()}, 8 * MB, CPU))
    assert {way.coded for way in permitted} == {True, False}
    assert not any(way.coded for way in ways(Topology(local=2, node=2), {}, 8 * MB, CPU))


def test_segments_overlap_at_the_pace_of_the_slowest_part() -> None:
    topology, way = Topology(local=2, node=2), Way("two_shot", 1.0)
    costs = Costs({"local": Link(1e9, 0.0), "node": Link(1e7, 0.0)}, {})
    # of each MiB half goes along `local` and a quarter along `node`, there and back
    local, node = 2 * (MB / 2) / 1e9, 2 * (MB / 4) / 1e7
    assert predict(topology, {}, way, MB, costs) == pytest.approx(local + node)
    first = segments(16 * MB // 4, MB // 4, 1)[0]
    share = (first[1] - first[0]) / (MB / 4)
    assert predict(topology, {}, way, 16 * MB, costs) == pytest.approx(share * local + 16 * node, rel=1e-3)


def test_the_processor_is_one_for_all_stages() -> None:
    topology, way = Topology(ring=2), Way("two_shot", 1.0, coded=True)
    costs = Costs({"ring": Link(1e12, 0.0)}, {"ring": CodecSpeed(1e8, 1e8)}, handling=1e-3)
    chunk = MB / 2 / 1e8  # seconds to encode or decode half a segment
    # one encoded, one decoded; one encoded, two decoded; two stages
    expected = 2 * 5 * chunk + len(segments(2 * MB // 4, MB // 4, 256)) * 2e-3
    assert predict(topology, {"ring": Int8()}, way, 2 * MB, costs) == pytest.approx(expected, rel=1e-3)


def test_rotation_balances_the_links() -> None:
    topology = Topology(x=4, y=4)
    costs = Costs({"x": Link(1e8, 0.0), "y": Link(1e8, 0.0)}, {})
    turned, straight = (predict(topology, {}, Way("ring", 1.0, turn), 64 * MB, costs) for turn in (True, False))
    assert turned < 0.75 * straight


# Real ranks


def chosen(rank: int, algorithms: Mapping[str, float]) -> None:
    """A tuner whose ways take the seconds given, by a clock that is put forward by them."""
    passed, clock = 0.0, SimpleNamespace(perf_counter=lambda: time.perf_counter() + passed)

    def run(way: Way, tensor: torch.Tensor) -> None:
        nonlocal passed
        passed += algorithms.get(str(way).split("@")[0], 20.0)

    with (
        mock.patch.object(sys.modules[slowest_once.__module__], "time", clock),
        mock.patch.object(tuning, "measure", return_value={"ring": Link(1e8, 1e-4)}),
        mock.patch.object(tuning, "codec_speed", return_value=CodecSpeed(1e9, 1e9)),
    ):
        tuner = Tuner(Topology(ring=2), {"ring": Uncompiled()}, None, CPU, run)
        choice = tuner.choose(8 * MB)
    assert str(choice.way).split("@")[0] == min(algorithms, key=algorithms.__getitem__), choice
    assert choice.size_class == 23 and choice.milliseconds >= 1e3 * min(algorithms.values())
    assert "native" in choice.reason


@pytest.mark.parametrize("fastest", ["native", "two_shot", "two_shot/coded"])
def test_the_fastest_in_fact_is_chosen(ranks: Call, fastest: str) -> None:
    ranks(2, chosen, {name: 1.0 if name == fastest else 6.0 for name in ("native", "two_shot", "two_shot/coded")})


def same_result(rank: int) -> None:
    all_reduce = AllReduce(Topology(local=2, node=2), algorithm="auto", codecs={"node": Uncompiled()})
    assert all_reduce.choices == []
    for count, dtype in ((0, torch.float32), (1, torch.float32), (5000, torch.float32), (2500, torch.int64)):
        tensor = (torch.arange(count) % 7 + rank).to(dtype)
        all_reduce(tensor, op="sum")
        exact = 4 * (torch.arange(count) % 7).double() + 6
        tolerance = 0.0 if dtype == torch.int64 else 0.5
        assert torch.equal(tensor.double(), exact) or (tensor.double() - exact).abs().max() <= tolerance
        hashes = [torch.empty_like(tensor) for _ in range(4)]
        dist.all_gather(hashes, tensor)
        assert all(torch.equal(each, tensor) for each in hashes)
    saved = all_reduce.state_dict()
    everyone: list[Any] = [None] * 4
    dist.all_gather_object(everyone, saved)
    assert all(each == saved for each in everyone)
    assert [choice.size_class for choice in all_reduce.choices] == [2, 14]


def test_all_ranks_choose_the_same_and_get_the_same_bits(ranks: Call) -> None:
    ranks(4, same_result)


def repeated(rank: int) -> None:
    topology, codec = Topology(local=2, node=2), Uncompiled()
    state = {
        "made_for": f"local=2 × node=2 with {codec} along node",
        "choices": [Choice(14, Way("two_shot", 4.0, coded=True)).state_dict()],
    }
    auto = AllReduce(topology, algorithm="auto", codecs={"node": codec})
    auto.load_state_dict(state)
    plain = AllReduce(topology, algorithm="two_shot", codecs={"node": codec})
    values = torch.randn(4096, generator=torch.Generator().manual_seed(rank))
    for _ in range(2):
        ours, other = values.clone(), values.clone()
        auto(ours), plain(other)
        assert torch.equal(ours, other)
    assert auto.state_dict() == state  # nothing was measured
    with pytest.raises(CommError, match="measured again"):
        AllReduce(topology, algorithm="auto").load_state_dict(state)


def test_choices_that_were_loaded_are_repeated_without_measuring(ranks: Call) -> None:
    ranks(4, repeated)


def resumed(rank: int) -> None:
    """A reducer that learns its choices after it was attached, as a resumed run does, gives the bits of the first."""
    codec = Uncompiled()

    def make(loaded: Mapping[str, Any] | None) -> tuple[nn.Module, Any, AllReduce]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
        all_reduce = AllReduce(Topology(local=2, node=1), algorithm="auto", codecs={"local": codec})
        if loaded is not None:
            all_reduce.load_state_dict(loaded)
        return model, attach(model, all_reduce), all_reduce

    def step(model: nn.Module, update: int) -> list[torch.Tensor]:
        model.zero_grad()
        data = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * update + rank))
        model(data).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    coded = [Choice(size, Way("two_shot", 4.0, coded=True)).state_dict() for size in range(2, 29)]
    loaded = {"made_for": f"local=2 × node=1 with {codec} along local", "choices": coded}
    model, reducer, _ = make(loaded)
    assert all(choice.way.coded for choice in reducer.choices())
    step(model, 0)
    reducer.settle(kept=True)
    state = reducer.state_dict()
    expected = step(model, 1)
    for way in (NATIVE, Way("two_shot")):  # a codec is permitted and not used
        chosen = [Choice(size, way).state_dict() for size in range(2, 29)]
        exact, third, _ = make({**loaded, "choices": chosen})
        assert {choice.way for choice in third.choices()} == {way}
        mean = torch.cat([gradient.flatten() for gradient in step(exact, 1)])
        again, _, _ = make({**loaded, "choices": chosen})
        assert torch.equal(torch.cat([gradient.flatten() for gradient in step(again, 1)]), mean)
        assert (mean - torch.cat([gradient.flatten() for gradient in expected])).abs().max() < 0.1
    again, second, _ = make(None)  # measures, and may choose anything
    second.load_state_dict(state)
    assert second.choices() == reducer.choices()
    assert all(map(torch.equal, step(again, 1), expected))


def test_a_resumed_reducer_repeats_choices_and_residuals(ranks: Call) -> None:
    ranks(2, resumed)


def other_algorithms(rank: int) -> None:
    all_reduce = AllReduce(algorithm="ring")
    assert all_reduce.choices == [] and all_reduce.state_dict() == {} and all_reduce.tune([4]) == []


def test_other_algorithms_have_no_choices(ranks: Call) -> None:
    ranks(2, other_algorithms)


def slow_link(rank: int) -> list[Choice]:
    codec: Codec = Uncompiled()
    all_reduce = AllReduce(Topology(local=2, node=2), algorithm="auto", codecs={"node": codec})
    all_reduce.tune([8 * MB])
    return all_reduce.choices


def test_a_slow_link_is_crossed_once_and_compressed(lab_ranks: Call) -> None:
    choices = lab_ranks(2, 2, slow_link)
    assert all(each == choices[0] for each in choices)
    assert choices[0][0].way.coded, choices[0][0].reason


def test_every_named_codec_may_be_permitted() -> None:
    for name in codecs.NAMES:
        AllReduce(Topology(ring=1), algorithm="auto", codecs={"ring": name})
