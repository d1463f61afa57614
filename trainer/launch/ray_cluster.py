"""`launch=ray`: the hosts of a run on a Ray cluster, an agent on each, which runs the controller that any host runs."""

import logging
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.trainer.launch import run_directory
from gradwire.trainer.launch.environment import cores
from gradwire.trainer.launch.errors import PlacementError, StoppedBeforeStart
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.ray_fleet import End, fleet
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.launch.streams import say


@dataclass(frozen=True)
class Room:
    """What each host takes of the cluster.

    Attributes:
        processes: Workers, with a core for each.
        gpus: GPUs.
    """

    processes: int
    gpus: int

    @property
    def bundle(self) -> dict[str, float]:
        """As Ray writes it."""
        return {"CPU": self.processes, **({"GPU": self.gpus} if self.gpus else {})}


def room(launch: Mapping[str, Any], nodes: Sequence[Mapping[str, float]]) -> Room:
    """What each host takes, from the `launch` section and the resources of the cluster's nodes.

    `auto` is a process for each GPU of a node (the fewest that one with GPUs has), or two on nodes without GPUs.
    """
    gpus = [int(node["GPU"]) for node in nodes if node.get("GPU", 0) >= 1 and launch["device"] != "cpu"]
    fewest = min(gpus, default=0)
    if launch["processes"] != "auto":
        processes = int(launch["processes"])
        return Room(processes, processes if fewest or launch["device"] == "cuda" else 0)
    if fewest:
        return Room(fewest, fewest)
    most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    return Room(max(1, min(2, most)), 0)


def launch_on_ray(job: Job, signals: ControllerSignals, program: tuple[str, ...]) -> int:
    """Run a job on hosts of a Ray cluster; start anew what was lost, `launch.restarts` times.

    Returns:
        The exit code of the command.

    Raises:
        LaunchError: there is no cluster, or no room in it.
    """
    ray = _connect(job.config["launch"])
    signals.install()  # Ray took them over
    try:
        if job.run_dir is None:
            job = job.at(run_directory.create(job.config, job.overrides))
        return _run(ray, job, signals, program)
    finally:
        ray.shutdown()


def _run(ray: Any, job: Job, signals: ControllerSignals, program: tuple[str, ...]) -> int:
    """Attempt after attempt, until one ends by itself or nothing is left to restart."""
    assert job.run_dir is not None
    first, before, left = job, _newest(job), job.config["launch"]["restarts"]
    try:
        while True:
            end = _attempt(ray, job, signals, program)
            if end.lost is None or left == 0 or signals.first is not None:
                return _concluded(job, end)
            say(f"{end.lost} Restarting from the newest checkpoint ({left} left).")
            left, job, signals.workers_run = left - 1, _again(job, before), False
    except StoppedBeforeStart as stop:  # while hosts were being placed
        assert job.run_dir is not None
        if job is first and job.restore is None:
            run_directory.discard(job.run_dir)  # so that the same command can be run again
        elif job.mode == "train" and job is not first:
            run_directory.write_status(job.run_dir, run_directory.status_of(stop.exit_code), stop.exit_code)
        raise


def _connect(launch: Mapping[str, Any]) -> Any:
    """Ray, connected to the cluster that `launch.address` names, or to one of its own on this machine (`local`)."""
    try:
        import ray
    except ImportError as error:
        raise PlacementError("launch=ray needs Ray: pip install 'gradwire[ray]'.") from error
    from gradwire.trainer.launch.rendezvous import parse_endpoint

    address = launch["address"]
    own: dict[str, Any] = {}
    if address == "local":
        processes = 2 if launch["processes"] == "auto" else launch["processes"]
        own = {"include_dashboard": False, "num_cpus": max(cores(), processes * launch["hosts"])}
    try:
        if address not in ("auto", "local") and "://" not in address:
            socket.create_connection(parse_endpoint(address), timeout=10).close()  # Ray itself tries for a minute
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (OSError, RuntimeError, ValueError) as error:
        raise PlacementError(f"launch.address={address}: no Ray cluster answers there ({error}).") from error
    return ray


def _attempt(ray: Any, job: Job, signals: ControllerSignals, program: tuple[str, ...]) -> End:
    """Place the hosts and run them to their end."""
    launch = job.config["launch"]
    wanted = room(launch, [node["Resources"] for node in ray.nodes() if node["Alive"]])
    with fleet(ray, wanted.bundle, launch["hosts"]) as hosts:
        return hosts.run(job, wanted.processes, signals, program)


def _newest(job: Job) -> object:
    """The newest commit where the run saves, to tell later whether this launch has saved one."""
    from gradwire.checkpoint import Checkpointer, CheckpointError

    assert job.run_dir is not None
    own = job.run_dir / "checkpoints"
    if job.store_url is None and not own.is_dir():
        return None
    try:
        return Checkpointer(job.store_url or str(own)).latest()
    except (CheckpointError, OSError):
        return None


def _again(job: Job, before: object) -> Job:
    """The job for another start: from the newest snapshot, unless the store holds only somebody else's."""
    own = job.restore is None and job.store_url is None
    return replace(job, restore="latest-if-any" if own or _newest(job) != before else job.restore)


def _concluded(job: Job, end: End) -> int:
    """Say how it ended where no controller could."""
    assert job.run_dir is not None
    if end.lost is not None:
        sys.stderr.write(f"\n{end.lost}\n\n")
        if job.mode == "train":
            run_directory.write_status(job.run_dir, run_directory.status_of(end.exit_code), end.exit_code)
            for line in run_directory.closing_lines(job.run_dir, end.exit_code, job.store_url):
                say(line)
    return end.exit_code
