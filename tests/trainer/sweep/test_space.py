"""The space: Hydra's sweep grammar, in overrides and in YAML, and what is wrong with one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.config.sources import Sources
from gradwire.trainer.sweep.parameters import Choice, Domain, Interval, Steps
from gradwire.trainer.sweep.space import Space, read, restored, split

SOURCES = Sources()


def one(text: str) -> Domain:
    space, mistakes = read([text], {}, SOURCES)
    assert mistakes == []
    return space.parameters[0].domain


def complaint(*texts: str) -> str:
    _, mistakes = read(texts, {}, SOURCES)
    return "\n".join(map(str, mistakes))


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("optimizer.lr=interval(1e-4, 1e-2)", Interval(1e-4, 1e-2)),
        ("optimizer.lr=tag(log, interval(1e-4, 1e-2))", Interval(1e-4, 1e-2, log=True)),
        ("a=int(interval(1, 10))", Interval(1, 10, whole=True)),
        ("a=tag(log, range(1, 101))", Interval(1, 100, log=True, whole=True)),
        ("batch.size=range(8, 33, 8)", Steps((8, 16, 24, 32))),
        ("a=range(4, 0, -1)", Steps((1, 2, 3, 4))),
        ("a=range(0.1, 0.4, 0.1)", Steps((0.1, 0.2, 0.3))),
        ("lr=wsd,warmup_cosine", Choice(("wsd", "warmup_cosine"), ("wsd", "warmup_cosine"))),
        (
            "run.length=100 updates,200 updates",
            Choice(("100 updates", "200 updates"), (r"100\ updates", r"200\ updates")),
        ),
        (
            "optimizer.betas=choice([0.9,0.95],[0.9,0.99])",
            Choice(("[0.9,0.95]", "[0.9,0.99]"), ("[0.9,0.95]", "[0.9,0.99]")),
        ),
        ("a=null,1,true", Choice(("null", "1", "True"), ("null", "1", "True"))),
        ("scaling=glob(s*)", Choice(("sqrt",), ("sqrt",))),
    ],
)
def test_hydras_grammar_gives_a_domain(text: str, domain: Domain) -> None:
    assert one(text) == domain


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=interval(3, 1)", "a (override 'a=interval(3, 1)'): is empty: an interval goes up, and 3.0 is not less"),
        ("a=interval(1, 1)", "is empty"),
        ("a=interval(0, inf)", "two finite ends"),
        ("a=interval(-1e308, 1e308)", "too far apart to reckon with"),
        ("a=tag(log, interval(1e-300, 1e300))", "too far apart to reckon with"),
        ("a=int(interval(0, 1e17))", "whole numbers go to 9007199254740992 here"),
        ("a=tag(log, interval(0, 1))", "a logarithm needs numbers above zero, and the interval begins at 0"),
        ("a=range(5, 5)", "is empty: from 5 no steps of 1 come before 5"),
        ("a=range(1, 9, 0)", "a step other than 0"),
        ("a=range(0, 1e9, 0.5)", "more than 100,000 values"),
        ("a=choice(1, 1)", "1 is there twice"),
        ("a=tag(loog, interval(1, 2))", "there is no tag loog"),
        ("a=tag(log, choice(1, 2))", "choices have no order"),
        ("a=glob(*)", "matches no option"),
        ("run.dir=a,b", "belongs to the sweep as a whole"),
        ("sweep.seed=1,2", "belongs to the sweep as a whole"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, message: str) -> None:
    assert message in complaint(text)


def test_nothing_to_sweep_and_a_key_swept_twice_are_mistakes() -> None:
    assert "nothing to sweep" in complaint()
    assert "a: is swept by two overrides" in complaint("a=1,2", "a=3,4")


def test_yaml_says_the_same_and_overrides_win() -> None:
    listed = {
        "optimizer.lr": ("tag(log, interval(1e-4, 1e-2))", "mine.yaml:3"),
        "batch.size": ([8, 16], "mine.yaml:4"),
        "clip": ("interval(0.5, 2)", "mine.yaml:5"),
    }
    space, mistakes = read(["clip=1.0,2.0"], listed, SOURCES)
    assert mistakes == []
    assert [(each.key, each.domain) for each in space.parameters] == [
        ("optimizer.lr", Interval(1e-4, 1e-2, log=True)),
        ("batch.size", Choice((8, 16), ("8", "16"))),
        ("clip", Choice((1.0, 2.0), ("1.0", "2.0"))),
    ]
    _, mistakes = read([], {"clip": (1.0, "mine.yaml:5"), "a": ("interval(", "mine.yaml:6")}, SOURCES)
    assert str(mistakes[0]).startswith("sweep.space.clip (mine.yaml:5)")
    assert str(mistakes[1]).startswith("a (mine.yaml:6): cannot be read")


def test_overrides_part_into_those_of_one_value_and_those_of_several() -> None:
    fixed = ["a=1", "b=[1,2]", "c='1,2'", "~d", "not an override", "experiment=digits"]
    swept = ["e=1,2", "f=interval(0,1)", "+g=choice(1)"]
    assert split([*fixed, *swept]) == (fixed, swept)


def test_what_is_written_down_reads_back_as_the_same_space() -> None:
    space, _ = read(["+a=1,'x y'", "b=tag(log, interval(1, 2))", "lr=wsd,step"], {}, SOURCES)
    again, mistakes = restored(space.written(), SOURCES)
    assert mistakes == [] and [(p.name, p.domain) for p in again.parameters] == [
        (p.name, p.domain) for p in space.parameters
    ]
    assert space.overrides({"a": "x y", "b": 1.5, "lr": "step"}) == ["+a='x y'", "b=1.5", "lr=step"]


@given(st.floats(0, 1, exclude_max=True))
def test_the_unit_interval_maps_onto_the_values_and_back(unit: float) -> None:
    domains: list[Domain] = [
        Interval(1e-5, 10.0, log=True),
        Interval(-3.0, 4.0),
        Interval(1, 100, log=True, whole=True),
        Interval(-2, 5, whole=True),
        Steps((8, 16, 24, 32)),
        Steps((0.1, 0.2, 0.3)),
        Choice(("a", 2, None), ("a", "2", "null")),
    ]
    for domain in domains:
        value = domain.at(unit)
        assert domain.exact(value) == value and type(domain.exact(value)) is type(value)
        assert (
            domain.at(domain.unit(value)) == pytest.approx(value)
            if isinstance(value, float)
            else domain.at(domain.unit(value)) == value
        )
        assert domain.distribution()._contains(domain.distribution().to_internal_repr(value))


def test_every_value_of_a_counted_domain_is_equally_likely() -> None:
    for domain in (Interval(1, 4, whole=True), Steps((1, 2, 3, 4)), Choice((1, 2, 3, 4), ("1", "2", "3", "4"))):
        found = [domain.at((place + 0.5) / 400) for place in range(400)]
        assert [found.count(value) for value in (1, 2, 3, 4)] == [100] * 4


def test_a_grid_changes_the_last_parameter_first() -> None:
    space, _ = read(["a=1,2", "b=range(3)"], {}, SOURCES)
    assert isinstance(space, Space) and space.grid_size() == 6
    assert [tuple(space.grid_point(number).values()) for number in range(6)] == [
        (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
