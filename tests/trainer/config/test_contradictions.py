import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from gradwire.trainer.config import Composed, ConfigError, compose, to_yaml, validate
from gradwire.trainer.config.contradictions import Machine, contradictions
from gradwire.trainer.config.elastic import at_other_sizes
from gradwire.trainer.config.values import Fault

Tiny = Callable[..., Composed]
ONE = Machine(gpus=0, processes=1, world_size=1)


def found(composed: Composed, machine: Machine) -> dict[str, str]:
    """Messages by key."""

    def on_machine(config: Any, allow: tuple[str, ...]) -> list[Fault]:
        return contradictions(config, allow, machine)

    try:
        validate(composed, on_machine)
    except ConfigError as error:
        return {mistake.key: mistake.message for mistake in error.mistakes}
    return {}


def test_the_defaults_go_together(tiny: Tiny) -> None:
    assert found(tiny(), ONE) == {}


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (("lr.warmup=200 updates",), "lr.warmup", "200 updates"),
        (("run.length=2 epochs", "lr.warmup=3 epochs"), "lr.warmup", "3 epochs"),
        (("batch.granule=5",), "batch.size", "32 is no multiple of batch.granule, 5"),
        (("batch.micro=33",), "batch.micro", "larger than the whole batch of 32"),
        (("optimizer.lr=-1",), "optimizer.lr", "Invalid learning rate"),
        (("optimizer.betas=[0.9,2]",), "optimizer.betas", "Invalid beta parameter"),
        (("~optimizer.lr",), "optimizer.lr", "peak learning rate"),
        (("lr.floor=2",), "lr.floor", "floor"),
        (("model=mlp", "model.width=3"), "model.width", "width must be even"),
        (("comm.topology={local:2}",), "comm.topology", "2 ranks and the run has 1"),
        (("evaluation.every=0 updates",), "evaluation.every", "null for never"),
        (("checkpoint.every=0 minutes",), "checkpoint.every", "null for never"),
        (("run.check_replicas=0%",), "run.check_replicas", "null for never"),
        (("evaluation.every=2.5 updates",), "evaluation.every", "whole number of updates"),
        (("launch.device=cuda",), "launch.device", "no usable GPU"),
        (("launch.hosts=2", "strategy=ddp"), "launch.endpoint", "2 hosts need"),
        (("launch.address=auto",), "launch.address", "launch=ray"),
        (("launch.engine=ray",), "launch.address", "is missing"),
        (("launch.engine=ray", "launch.address=auto", "launch.endpoint=a:1"), "launch.endpoint", "leave it out"),
    ],
)
def test_a_contradiction_is_named(tiny: Tiny, overrides: tuple[str, ...], key: str, message: str) -> None:
    mistakes = found(tiny(*overrides), ONE)
    assert list(mistakes) == [key]
    assert message in mistakes[key]


def test_a_logger_whose_package_is_missing_is_told_before_the_start(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = "+logger.events._target_=gradwire.trainer.loggers.TensorBoard"
    assert found(tiny(logged), ONE) == {}
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert "gradwire[tensorboard]" in found(tiny(logged), ONE)["logger.events"]


def test_everything_that_a_constructor_refuses_is_told_at_once(tiny: Tiny) -> None:
    mistakes = found(tiny("optimizer.lr=-1", "optimizer.eps=-1", "optimizer.betas=[2,0.9]"), ONE)
    assert set(mistakes) == {"optimizer.lr", "optimizer.eps", "optimizer.betas"}


def test_each_process_needs_its_gpu(tiny: Tiny) -> None:
    composed = tiny("launch.device=cuda", "launch.processes=4", "strategy=ddp")
    assert "4 processes for 2 GPUs" in found(composed, Machine(gpus=2, processes=4, world_size=4))["launch.processes"]
    assert "launch.processes" not in found(composed, Machine(gpus=4, processes=4, world_size=4))
    auto = tiny("launch.device=auto", "launch.processes=4", "strategy=ddp")
    assert "4 processes for 2 GPUs" in found(auto, Machine(gpus=2, processes=4, world_size=4))["launch.processes"]


def test_single_is_for_one_process(tiny: Tiny) -> None:
    assert "there are 2" in found(tiny(), Machine(gpus=0, processes=2, world_size=2))["strategy"]


def test_ray_starts_the_hosts_itself_and_has_their_gpus(tiny: Tiny) -> None:
    composed = tiny("launch.engine=ray", "launch.address=auto", "launch.hosts=2", "strategy=ddp", "launch.device=cuda")
    machine = Machine.here(composed.config["launch"])
    assert machine.gpus == machine.processes and found(composed, machine) == {}
    outer = Machine(gpus=1, processes=1, world_size=2, endpoint=True)
    assert "run this once" in found(composed, outer)["launch.engine"]


ELASTIC = ("launch.endpoint=a:1", "strategy=ddp")


def test_hosts_that_come_and_go_need_what_fits_any_number_of_them(tiny: Tiny) -> None:
    assert found(tiny("launch.hosts=1:4", *ELASTIC), ONE) == {}
    fixed = ("launch.hosts=2:2", "comm.topology={local:1,node:2}", *ELASTIC)
    assert found(tiny(*fixed), Machine(gpus=0, processes=1, world_size=2)) == {}
    single = found(tiny("launch.hosts=1:2", "launch.endpoint=a:1"), ONE)
    assert "launch.hosts=1:2 allows more" in single["strategy"]
    ray = found(tiny("launch.hosts=1:2", "launch.engine=ray", "launch.address=auto", "strategy=ddp"), ONE)
    assert "a placement group of Ray has a fixed number: write 2" in ray["launch.hosts"]


def test_what_fits_the_fewest_hosts_only_names_the_number_that_it_does_not_fit() -> None:
    layers = ("strategy=tensor_parallel", "strategy.tensor=2", "model.kv_heads=2")
    (fault,) = at_other_sizes(compose(["launch.hosts=2:3", *layers]).config, (), 1)
    assert fault.key == "strategy.tensor"
    assert fault.message == "2 must divide the 3 ranks of the run (launch.hosts=2:3 allows 3 hosts of 1 ranks)"
    assert at_other_sizes(compose(["launch.hosts=2:2", *layers]).config, (), 1) == []


def test_the_fewest_hosts_are_what_is_checked(tiny: Tiny) -> None:
    launch = {"processes": 3, "device": "cpu", "hosts": "2:4"}
    assert Machine.here(launch).world_size == 6


def test_a_span_of_hosts_reads_back_as_it_was(tiny: Tiny) -> None:
    config = validate(tiny("launch.hosts=1:3", *ELASTIC), lambda config, allow: []).config
    assert yaml.safe_load(to_yaml(config))["launch"]["hosts"] == "1:3"


def test_an_outer_launcher_says_where_hosts_meet(tiny: Tiny) -> None:
    machine = Machine(gpus=0, processes=1, world_size=2, endpoint=True)
    assert found(tiny("launch.hosts=2", "strategy=ddp"), machine) == {}


def test_the_topology_multiplies_to_the_world_size(tiny: Tiny) -> None:
    machine = Machine(gpus=0, processes=4, world_size=8)
    assert found(tiny("comm.topology={local:4,node:2}", "strategy=ddp"), machine) == {}


def test_epochs_of_unknown_length_are_left_to_the_data(tiny: Tiny) -> None:
    assert found(tiny("lr.warmup=3 epochs"), ONE) == {}


def test_this_machine_is_found_out(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = {"processes": 3, "device": "cpu", "hosts": 2}
    assert (Machine.here(launch).processes, Machine.here(launch).world_size) == (3, 6)
    variables = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    here = Machine.here(launch)
    assert (here.processes, here.world_size, here.endpoint) == (4, 8, True)
