"""A sample of benchmarks/checkpoint_kills.py, and what its table says of runs that went wrong."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.checkpoint_kill_kinds import KINDS, Kind, s3_server
from benchmarks.checkpoint_kill_run import Kill, Life
from benchmarks.checkpoint_kills import Campaign, faults, summary, table

OF = {kind.name: kind for kind in KINDS}


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with s3_server():
        yield Campaign(tmp_path_factory.mktemp("kills"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "store", "seed"),
    [("journal=update, int8", "s3", "sample"), ("journal=update, int4, fast", "disk", "sample")],
)
def test_a_run_that_is_killed_again_and_again_ends_as_it_should(
    killing: Campaign, name: str, store: str, seed: str
) -> None:
    life = killing.run(OF[name], store, f"{name}, {store}, {seed}", kills=2)
    assert faults(life, OF[name]) == []
    assert life.kills
    assert all(kill.continued is not None for kill in life.kills)
    assert life.loss_apart < 0.05


def life(kind: Kind, *repeated: int, **rest: object) -> Life:
    kills = [Kill("rank", "now", continued=7, repeated=each, by="resume") for each in repeated]
    return Life(kind.name, "disk", f"{kind.name}, disk, 0, 0", 0, kills, **rest)  # type: ignore[arg-type]


def test_other_bits_are_a_fault_and_named_by_the_seed_unless_they_may_be_other() -> None:
    exact, fast = OF["journal=update"], OF["journal=update, int4, fast"]
    assert faults(life(exact, 1, 0), exact) == []
    assert faults(life(exact, differences=["/model/a"]), exact) == ["1 differences, such as /model/a"]
    assert faults(life(fast, differences=["/model/a"]), fast) == []
    text = table([life(exact, 1, 0), life(exact, 0, differences=["/model/a"])])
    assert "| journal=update | disk | 2 | 3 | 3 | 1 of 2 | 0.00% | 1 | journal=update, disk, 0, 0 |" in text


def test_updates_done_twice_are_a_fault_where_the_journal_holds_every_one() -> None:
    durable, seconds = OF["journal=update"], OF["journal=interval"]
    assert faults(life(durable, 2), durable) == ["2 updates repeated after the kill now"]
    assert faults(life(seconds, 2), seconds) == []
    assert faults(life(durable, failure="gone"), durable) == ["gone"]
    assert summary([life(durable, 0, 1)]) == "2 kills in 1 runs: rank 2; went on by resume 2"


def test_a_life_survives_its_file(tmp_path: Path) -> None:
    whole = life(OF["journal=update"], 1)
    assert Life.from_json(whole.to_json()) == whole
