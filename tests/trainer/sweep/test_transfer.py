"""From a small configuration to a large one: what the scaling rules predict."""

from dataclasses import replace

import pytest

from gradwire.trainer.config import ConfigError
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.request import requested
from gradwire.trainer.sweep.transfer import Prediction, check, predicted

LARGE = ("batch.size=64", "run.length=20 updates")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Definition:
    """Over the learning rate, of runs of forty updates of 16 samples."""
    folder = tmp_path_factory.mktemp("transfer")
    space = ["optimizer.lr=0.01,0.02", "run.length=40 updates", "launch.device=cpu", "launch.processes=1"]
    return requested([f"sweep.dir={folder}", *space], None)


def wanting(sweep: Definition, *overrides: str) -> Definition:
    return replace(sweep, section={**sweep.section, "transfer": list(overrides)})


def large(sweep: Definition, *overrides: str) -> Prediction:
    found = predicted(wanting(sweep, *LARGE, *overrides), {"optimizer.lr": 0.02})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rule", "lr", "betas"),
    [
        ([], 0.02, (0.9, 0.999)),
        (["scaling=linear"], 0.08, (0.9, 0.999)),
        (["scaling=sqrt"], 0.04, (0.9, 0.999)),
        (["scaling=sqrt", "scaling.adapt_betas=true"], 0.04, (0.6, 0.996)),
        (["scaling=sqrt", "scaling.reference=4"], 0.08, (0.9, 0.999)),
    ],
)
def test_the_rule_takes_the_trials_batch_for_its_reference(
    sweep: Definition, rule: list[str], lr: float, betas: tuple[float, float]
) -> None:
    found = large(sweep, *rule, *(["optimizer.betas=[0.9,0.999]"] if rule else []))
    assert (found.small.batch_size, found.small.lr, found.small.updates) == (16, 0.02, 40)
    assert (found.large.batch_size, found.large.updates) == (64, 20)
    assert found.large.lr == pytest.approx(lr)
    assert not rule or found.large.betas == pytest.approx(betas)
    assert found.config["optimizer"]["lr"] == 0.02  # what scales it is the plan


def test_what_is_predicted_is_told_in_a_line(sweep: Definition) -> None:
    told = str(large(sweep, "scaling=linear"))
    assert told == "lr 0.02 at batch 16 -> 0.08 at batch 64 by Linear, 20 updates"
    assert predicted(sweep, {"optimizer.lr": 0.02}) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["batch.sise=8"], "batch.sise.*did you mean batch.size?"),
        (["batch.size=8,16"], "only a sweep takes"),
        (["optimizer.lr=0.1"], "gives optimizer.lr a value, which the sweep is there to find"),
        (["batch.size=640", "scaling=sqrt", "scaling.adapt_betas=true"], "adapt_betas turns beta"),
    ],
)
def test_a_transfer_that_would_fail_is_refused_before_anything_runs(
    sweep: Definition, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(wanting(sweep, *overrides))


def test_it_may_be_asked_for_when_the_sweep_goes_on(sweep: Definition) -> None:
    changed = sweep.changed(["sweep.transfer=['batch.size=64','scaling=sqrt']"])
    found = predicted(changed, {"optimizer.lr": 0.01})
    assert found is not None and found.large.lr == pytest.approx(0.02)
