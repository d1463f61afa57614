"""The section `comm`: its options, what is wrong with it, and what is only remarkable."""

from collections.abc import Sequence
from typing import Any

import pytest

from gradwire.comm import codecs, compressions
from gradwire.trainer.config import ConfigError, Mistake, compose, validate
from gradwire.trainer.config.communication import axes_of, remarks
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.instantiation import instantiate
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.config.values import Fault

FOUR = Machine(gpus=0, processes=4, world_size=4)
TWO_BY_TWO = "comm.topology={local: 2, node: 2}"


def config_of(*overrides: str) -> dict[str, Any]:
    return validate(compose(["launch.processes=4", "launch.device=cpu", *overrides]), on_four).config


def on_four(config: Any, allow: tuple[str, ...]) -> list[Fault]:
    return contradictions(config, allow, FOUR)


def mistakes_of(overrides: Sequence[str]) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        config_of(*overrides)
    return list(caught.value.mistakes)


@pytest.mark.parametrize("name", compressions.NAMES)
def test_every_codec_can_be_chosen_for_an_axis_without_plus(name: str) -> None:
    comm = config_of("comm=hierarchical", TWO_BY_TWO, f"comm/codec@comm.codecs.node={name}")["comm"]
    codec = instantiate(comm["codecs"]["node"], ())
    assert codec == compressions.named(name)
    assert instantiate(comm["codecs"]["local"], ()).name == "none"


def test_there_is_an_option_for_every_codec() -> None:
    assert set(compressions.NAMES) == set(Sources("gradwire.conf").options("comm/codec"))


def test_arguments_of_a_codec_are_keys() -> None:
    chosen = ("comm=ring", "comm/codec@comm.codecs.ring=int4", "comm.codecs.ring.block=64")
    codec = instantiate(config_of(*chosen, "comm.codecs.ring.hadamard=true")["comm"]["codecs"]["ring"], ())
    assert codec == codecs.Int4(block=64, hadamard=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "chosen",
    [
        ("comm=native",),
        ("comm=ring", "comm/codec@comm.codecs.ring=top_k"),
        ("comm=hierarchical", "comm/codec@comm.codecs.node=sign", "comm.timeout=20 seconds"),
        ("comm=hierarchical", TWO_BY_TWO, "comm/codec@comm.codecs.node=fp8", "comm.codecs.node.format=e5m2"),
        ("comm=torus", "comm.topology={x: 2, y: 2}", "comm/codec@comm.codecs.y=int8"),
        ("comm=torus", "comm.topology={x: 2, y: 1, z: 2}", "comm.rotate=false"),
    ],
)
def test_what_goes_together(chosen: tuple[str, ...], precision: str) -> None:
    config_of(*chosen, f"precision={precision}")


@pytest.mark.parametrize(
    ("overrides", "key", "says", "suggestion"),
    [
        (
            ("comm=hierarchical", "comm.topology={local: 2, node: 3}"),
            "comm.topology",
            "is 6 ranks and the run has 4",
            None,
        ),
        (("comm=torus", "comm.topology.x=2"), "comm.topology.y", "has no value yet", None),
        (
            ("comm=hierarchical", TWO_BY_TWO, "comm/codec@comm.codecs.node=int9"),
            "comm/codec",
            "no comm/codec called int9",
            "comm/codec@comm.codecs.node=int8",
        ),
        (
            ("comm=hierarchical", TWO_BY_TWO, "comm.codecs.node=int8"),
            "comm.codecs.node",
            "expected a component",
            "comm/codec@comm.codecs.node=int8",
        ),
        (
            ("comm=hierarchical", TWO_BY_TWO, "+comm/codec@comm.codecs.nodes=int8"),
            "comm.codecs.nodes",
            "no such axis in comm.topology; the axes are local, node",
            "comm.codecs.node",
        ),
        (
            ("comm=torus", "comm.topology={x: 2, y: 2}", "comm/codec@comm.codecs.z=int8"),
            "comm.codecs.z",
            "no such axis in comm.topology; the axes are x, y",
            None,
        ),
        (("comm/codec@comm.codecs.node=int8",), "comm/codec@comm.codecs.node", "comm=hierarchical has", None),
        (
            ("comm=ring", "comm/codec@comm.codecs.ring=int8", "comm.algorithm=native"),
            "comm.algorithm",
            "the only axis, ring, has a codec",
            "comm.algorithm=two_shot",
        ),
        (
            ("comm=hierarchical", TWO_BY_TWO, "comm/codec@comm.codecs.local=power_sgd"),
            "comm.codecs.local",
            "PowerSGD belongs on the last axis, node",
            None,
        ),
        (
            ("comm=torus", "comm.topology={x: 2, y: 2}", "comm/codec@comm.codecs.y=power_sgd"),
            "comm.rotate",
            "needs the axes in one order",
            "comm.rotate=false",
        ),
        (("comm.algorithm=rign",), "comm.algorithm", "expected one of", "ring"),
        (
            ("comm=ring", "comm/codec@comm.codecs.ring=int8", "comm.codecs.ring.blok=64"),
            "comm.codecs.ring.blok",
            "no such key",
            "comm.codecs.ring.block",
        ),
        (
            ("comm=ring", "comm/codec@comm.codecs.ring=int8", "comm.codecs.ring.block=13"),
            "comm.codecs.ring.block",
            "multiple of 8",
            None,
        ),
        (("comm=ring", "comm.segment_mb=0"), "comm.segment_mb", "0", None),
        (("comm=ring", "comm.timeout=20"), "comm.timeout", "not a duration", None),
    ],
)
def test_a_mistake_is_named_with_its_cure(
    overrides: tuple[str, ...], key: str, says: str, suggestion: str | None
) -> None:
    (mistake,) = mistakes_of(overrides)
    assert (mistake.key, mistake.suggestion) == (key, suggestion)
    assert says in mistake.message


def test_hosts_are_the_axes_where_they_are_to_be_detected() -> None:
    assert axes_of({"topology": "detect"}, 4, 8) == {"local": 4, "node": 2}
    assert axes_of({"topology": None}, 4, 8) == {"ring": 8}
    assert axes_of({"topology": {"x": 8}}, 4, 8) == {"x": 8}


def test_an_idle_codec_is_noted_and_no_mistake() -> None:
    comm = config_of("comm=hierarchical", "comm/codec@comm.codecs.node=int8")["comm"]
    assert list(remarks(comm, 4, 4)) == [
        "note: comm.codecs.node is Int8 and the axis has one rank: nothing is sent there"
    ]
    assert list(remarks(comm, 2, 4)) == []


def test_an_algorithm_that_no_axis_is_left_to_is_noted() -> None:
    comm = config_of("comm=ring", "comm/codec@comm.codecs.ring=int8")["comm"]
    assert [note.split(" is ")[0] for note in remarks(comm, 4, 4)] == ["note: comm.algorithm=ring"]
