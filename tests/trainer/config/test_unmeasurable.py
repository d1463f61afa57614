"""What follows the noise scale is refused before any worker starts where the run has no way to measure it."""

from typing import Any

import pytest

from gradwire.trainer.config import ConfigError, Valid, compose, validate
from gradwire.trainer.config.contradictions import Machine, contradictions, contradictions_of_evaluation
from gradwire.trainer.config.values import Fault
from tests.trainer.commands import gradwire

DIGITS = ["model=convnet", "data=digits", "run.length=2000 samples", "launch.device=cpu", "batch.size=64"]
NOISE_SCALE = ["batch=noise_scale", "batch.schedule.start=16"]
CRITICAL = ["batch=critical", "batch.schedule.start=16"]
ADASCALE = ["scaling=adascale", "scaling.reference=32"]
MEASURED = pytest.mark.parametrize(
    ("rule", "key"), [(NOISE_SCALE, "batch.schedule"), (CRITICAL, "batch.schedule"), (ADASCALE, "scaling")]
)


def checked(*overrides: str, world_size: int = 1, gpus: int = 0) -> Valid:
    def on_machine(config: Any, allow: tuple[str, ...]) -> list[Fault]:
        return contradictions(config, allow, Machine(gpus=gpus, processes=world_size, world_size=world_size))

    return validate(compose([*DIGITS, *overrides], None), on_machine)


def refused(*overrides: str, world_size: int = 1, gpus: int = 0) -> dict[str, str]:
    try:
        checked(*overrides, world_size=world_size, gpus=gpus)
    except ConfigError as error:
        return {mistake.key: mistake.message for mistake in error.mistakes}
    return {}


@MEASURED
def test_one_rank_with_one_micro_batch_and_no_norm_layer_is_refused(rule: list[str], key: str) -> None:
    found = refused(*rule)
    assert list(found) == [key]
    assert "no smaller gradient to compare with" in found[key] and "lower batch.micro" in found[key]


@MEASURED
def test_more_ranks_or_more_micro_batches_can_measure(rule: list[str], key: str) -> None:
    assert refused(*rule, "batch.micro=8") == {}
    assert refused(*rule, "strategy=ddp", world_size=2) == {}


def test_what_counts_is_the_first_batch() -> None:
    assert "batch.schedule" in refused(*NOISE_SCALE, "batch.micro=16")
    assert refused(*NOISE_SCALE, "batch.micro=15") == {}


def test_where_a_gpu_decides_the_micro_batch_the_worker_tells() -> None:
    words = [*NOISE_SCALE, "launch.device=auto"]
    assert list(refused(*words)) == ["batch.schedule"]
    assert refused(*words, gpus=1) == {}


def test_norm_layers_stand_in_unless_their_blocks_are_compiled() -> None:
    words = [*NOISE_SCALE, "model=decoder_small", "data=python_source"]
    assert refused(*words) == {}
    assert "set compile=false" in refused(*words, "compile=true")["batch.schedule"]


def test_batch_norms_over_all_ranks_hide_the_noise() -> None:
    found = refused(*NOISE_SCALE, "sync_batchnorm=true", "strategy=ddp", world_size=2)
    assert "set sync_batchnorm=false" in found["batch.schedule"]


@MEASURED
@pytest.mark.parametrize("every", ["200 updates", "4000 samples"])
def test_an_interval_as_long_as_the_run_leaves_nothing_to_follow(rule: list[str], key: str, every: str) -> None:
    found = refused(*rule, "batch.micro=8", f"noise_scale.every={every}")
    assert list(found) == ["noise_scale.every"]
    assert f"so that {key} has nothing to follow" in found["noise_scale.every"]


def test_the_built_in_interval_counts_too() -> None:
    found = refused(*NOISE_SCALE, "batch.micro=8", "noise_scale.every=null", "run.length=100 samples")
    assert "first measured after 10 updates and the run takes 7" in found["batch.schedule"]


def test_without_a_measured_rule_it_is_a_note() -> None:
    notes = checked("noise_scale.every=500 updates").notes
    assert [note for note in notes if "noise_scale.every is 500 updates and the run takes 32 updates" in note]
    assert not [note for note in checked("noise_scale.every=30 updates").notes if "noise_scale" in note]
    assert not [note for note in checked("noise_scale.every=null").notes if "noise_scale" in note]


def test_a_run_that_measured_is_evaluated_on_any_number_of_ranks() -> None:
    def on_machine(config: Any, allow: tuple[str, ...]) -> list[Fault]:
        return contradictions_of_evaluation(config, allow, Machine(gpus=0, processes=1, world_size=1))

    assert validate(compose([*DIGITS, *NOISE_SCALE], None), on_machine).config["batch"]["schedule"]["start"] == 16


@pytest.mark.parametrize("command", ["plan", "train"])
def test_the_command_says_it_and_ends_with_2(command: str) -> None:
    done = gradwire(command, *DIGITS, *NOISE_SCALE, "launch.processes=1")
    assert done.returncode == 2
    assert "no smaller gradient to compare with" in done.stderr and "Traceback" not in done.stderr
