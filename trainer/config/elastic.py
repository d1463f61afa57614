"""What cannot be where hosts come and go (launch.hosts=MIN:MAX), or can be at some numbers of them only."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.communication import misfits
from gradwire.trainer.config.deepspeed import undrivable
from gradwire.trainer.config.hosts_apart import trains_apart
from gradwire.trainer.config.strategies import unsharded
from gradwire.trainer.config.values import Fault
from gradwire.trainer.launch.hosts import Hosts

Config = Mapping[str, Any]


def fixed_sizes(config: Config) -> list[Fault]:
    """What holds for one number of hosts alone, or for none that changes.

    Args:
        config: As `Checker` gave it back.
    """
    hosts = Hosts.of(config["launch"]["hosts"])
    return list(_fixed(config, hosts)) if hosts.elastic else []


def _fixed(config: Config, hosts: Hosts) -> Iterator[Fault]:
    topology = config["comm"]["topology"]
    if config["launch"]["engine"] == "ray":
        message = (
            f"{hosts} hosts would come and go, and a placement group of Ray has a fixed number: write {hosts.most}"
        )
        yield Fault("launch.hosts", message, f"launch.hosts={hosts.most}")
    if config["strategy"][TARGET].endswith(".Single"):
        yield Fault("strategy", f"Single is for one process, and launch.hosts={hosts} allows more: use strategy=ddp")
    if isinstance(topology, Mapping) and hosts.least != hosts.most:
        message = (
            f"names a fixed number of ranks, and with launch.hosts={hosts} that changes: write detect, which finds the "
            "hosts that are there"
        )
        yield Fault("comm.topology", message, "comm.topology=detect")


def at_other_sizes(config: Config, allow: tuple[str, ...], processes: int) -> list[Fault]:
    """What goes together with the fewest hosts, and not with some more.

    Args:
        config: As `Checker` gave it back.
        allow: Packages that the user allows targets from.
        processes: Ranks on each host.
    """
    hosts = Hosts.of(config["launch"]["hosts"])
    for count in range(hosts.least + 1, hosts.most + 1):
        faults = [*misfits(config["comm"], processes, processes * count)]
        faults += unsharded(config, allow, processes, processes * count, None)
        faults += undrivable(config, processes * count, gpus=0)
        if _apart_without_samples(config, processes * count):
            size = config["batch"]["size"]
            faults.append(Fault("batch.size", f"{size} samples leave some of {processes * count} ranks without any"))
        if faults:
            why = f" (launch.hosts={hosts} allows {count} hosts of {processes} ranks)"
            return [replace(fault, message=fault.message + why) for fault in faults]
    return []


def _apart_without_samples(config: Config, world_size: int) -> bool:
    return trains_apart(config) and config["batch"]["size"] < world_size
