"""Values that are right alone and wrong together, or wrong on this machine."""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.communication import misfits, too_late, unjournalled
from gradwire.trainer.config.construction import refused
from gradwire.trainer.config.deepspeed import undrivable
from gradwire.trainer.config.elastic import at_other_sizes, fixed_sizes
from gradwire.trainer.config.fit import refused_plan, unfit
from gradwire.trainer.config.hosts_apart import not_apart
from gradwire.trainer.config.measuring import measured_part, unmeasurable
from gradwire.trainer.config.strategies import unsharded
from gradwire.trainer.config.values import Fault
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.loggers.tensorboard import NOT_INSTALLED

Config = Mapping[str, Any]
TENSORBOARD = "gradwire.trainer.loggers.TensorBoard"
_PARTS_OF_PLAN = ("batch", "lr", "optimizer", "scaling", "run")


@dataclass(frozen=True)
class Machine:
    """What a run would get here.

    Args:
        gpus: GPUs of this machine.
        processes: Workers on this machine.
        world_size: Workers altogether, the fewest where hosts come and go.
        endpoint: Whether an outer launcher says where the hosts meet.
    """

    gpus: int
    processes: int
    world_size: int
    endpoint: bool = False

    @classmethod
    def here(cls, launch: Mapping[str, Any]) -> "Machine":
        """This machine, with the workers that the `launch` section and an outer launcher ask for."""
        import torch

        from gradwire.trainer.launch.environment import Place, detect
        from gradwire.trainer.launch.local import count_processes

        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        who = detect(os.environ)
        if isinstance(who, Place):
            return cls(gpus, who.local_world_size, who.world_size, endpoint=True)
        processes = count_processes(launch["processes"], launch["device"])
        if launch.get("engine") == "ray" and launch["device"] == "cuda":
            gpus = processes  # the cluster's, which this machine need not have
        hosts = Hosts.of(launch["hosts"])
        least = hosts.least if hosts.elastic else who.hosts or hosts.least
        return cls(gpus, processes, processes * least, who.endpoint is not None)


def contradictions(config: Config, allow_targets: tuple[str, ...], machine: Machine | None = None) -> list[Fault]:
    """Everything in a well-formed configuration that does not go together where a run trains by it.

    Args:
        config: As `Checker` gave it back.
        allow_targets: Packages that the user allows targets from.
        machine: What there is to run on; found out where None.
    """
    machine = machine or Machine.here(config["launch"])
    faults = contradictions_of_evaluation(config, allow_targets, machine)
    if not faults:
        follows = measured_part(config, allow_targets)
        faults += [*too_late(config, follows), *unjournalled(config)]
        faults += unsharded(config, allow_targets, machine.processes, machine.world_size, follows)
        faults += not_apart(config, allow_targets, follows, machine.processes, machine.world_size)
        faults += undrivable(config, machine.world_size, machine.gpus)
        faults += _loggers(config)
        faults = faults or at_other_sizes(config, allow_targets, machine.processes)
    return faults or [*unmeasurable(config, allow_targets, machine.world_size, machine.gpus)]


def contradictions_of_evaluation(
    config: Config, allow_targets: tuple[str, ...], machine: Machine | None = None
) -> list[Fault]:
    """Everything that does not go together already where nothing is trained.

    Args:
        config: As `Checker` gave it back.
        allow_targets: Packages that the user allows targets from.
        machine: What there is to run on; found out where None.
    """
    machine = machine or Machine.here(config["launch"])
    faults = [*contradictions_elsewhere(config, allow_targets, machine), *unfit(config, allow_targets)]
    if not any(fault.key.startswith(_PARTS_OF_PLAN) for fault in faults):
        faults += refused_plan(config, allow_targets)
    return faults


def contradictions_elsewhere(config: Config, allow_targets: tuple[str, ...], machine: Machine) -> list[Fault]:
    """What does not go together where this machine has neither the data nor the devices.

    Args:
        config: As `Checker` gave it back.
        allow_targets: Packages that the user allows targets from.
        machine: What there will be to run on.
    """
    return [
        *_launch(config, machine),
        *(fixed_sizes(config) or misfits(config["comm"], machine.processes, machine.world_size)),
        *_precision(config, machine),
        *_batch(config),
        *_intervals(config),
        *_tiers(config),
        *refused(config, allow_targets),
    ]


def _launch(config: Config, machine: Machine) -> Iterator[Fault]:
    launch = config["launch"]
    if launch["device"] == "cuda" and machine.gpus == 0:
        yield Fault("launch.device", "cuda was asked for and this machine has no usable GPU: use cpu or auto")
    elif launch["device"] != "cpu" and 0 < machine.gpus < machine.processes:
        yield Fault("launch.processes", f"{machine.processes} processes for {machine.gpus} GPUs: each needs its own")
    if launch["engine"] == "ray":
        yield from _on_ray(launch, machine)
    elif launch["address"] is not None:
        yield Fault("launch.address", "is that of a Ray cluster, and nothing here runs on one: launch=ray")
    elif Hosts.of(launch["hosts"]).most > 1 and launch["endpoint"] is None and not machine.endpoint:
        yield Fault("launch.endpoint", f"is missing: {launch['hosts']} hosts need a host:port where they meet")
    if config["strategy"]["_target_"].endswith(".Single") and machine.world_size > 1:
        message = (
            f"Single is for one process and there are {machine.world_size}: use strategy=ddp or launch.processes=1"
        )
        yield Fault("strategy", message)


def _loggers(config: Config) -> Iterator[Fault]:
    if config["launch"]["engine"] == "ray":
        return  # the packages are the cluster's
    for name, node in config["logger"].items():
        if node and node[TARGET] == TENSORBOARD and importlib.util.find_spec("tensorboard") is None:
            yield Fault(f"logger.{name}", NOT_INSTALLED)


def _on_ray(launch: Mapping[str, Any], machine: Machine) -> Iterator[Fault]:
    if machine.endpoint:
        yield Fault("launch.engine", "Ray starts the hosts itself: run this once, not under torchrun or srun")
    if launch["address"] is None:
        yield Fault("launch.address", "is missing: auto for the cluster that runs, local for a new one, or host:port")
    if launch["endpoint"] is not None:
        yield Fault("launch.endpoint", "is not for Ray, whose first host is where the others meet: leave it out")


def _tiers(config: Config) -> Iterator[Fault]:
    from gradwire.checkpoint.memory import MEMORY, SHARED_MEMORY

    checkpoint, hosts = config["checkpoint"], Hosts.of(config["launch"]["hosts"]).most
    places = [*checkpoint["tiers"], *([checkpoint["url"]] if checkpoint["url"] is not None else [])]
    for place in sorted({each for each in places if places.count(each) > 1}):
        yield Fault("checkpoint.tiers", f"{place} is named twice, and each tier needs a place of its own")
    if MEMORY in checkpoint["tiers"] and hosts > 1:
        message = f"memory is another place on each of {hosts} hosts: name a folder that all of them mount, or a URL"
        yield Fault("checkpoint.tiers", message, "checkpoint.tiers=[]")
    elif MEMORY in checkpoint["tiers"] and not SHARED_MEMORY.is_dir():
        yield Fault("checkpoint.tiers", f"this host has no {SHARED_MEMORY}: name a folder on its disk")


def _precision(config: Config, machine: Machine) -> Iterator[Fault]:
    import torch

    from gradwire.trainer.precision import unsupported

    on_gpu = config["launch"]["device"] != "cpu" and machine.gpus > 0
    if on_gpu and not torch.cuda.is_available():
        return
    reason = unsupported(config["precision"], torch.device("cuda" if on_gpu else "cpu"))
    if reason:
        yield Fault("precision", reason)


def _batch(config: Config) -> Iterator[Fault]:
    batch = config["batch"]
    size, micro, granule = batch["size"], batch["micro"], batch["granule"]
    if size % granule:
        near = max(granule, round(size / granule) * granule)
        yield Fault("batch.size", f"{size} is no multiple of batch.granule, {granule}", f"batch.size={near}")
    if micro != "auto" and micro > size:
        yield Fault("batch.micro", f"a micro-batch of {micro} samples is larger than the whole batch of {size}")


def _intervals(config: Config) -> Iterator[Fault]:
    from gradwire.schedulers import Duration

    places = (("run", "check_replicas"), ("evaluation", "every"), ("checkpoint", "every"), ("noise_scale", "every"))
    for section, key in places:
        if config[section][key] is None:
            continue
        interval = Duration.parse(config[section][key])
        if interval.amount == 0:
            yield Fault(f"{section}.{key}", f"an interval of '{interval}' never ends: write null for never")
        elif interval.unit == "updates" and not isinstance(interval.amount, int):
            yield Fault(f"{section}.{key}", f"an interval is a whole number of updates, found {interval.amount}")
