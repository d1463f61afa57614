"""The controller of one host: starts its workers through torch elastic's agent and reports how the run went."""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.launch import run_directory
from gradwire.trainer.launch.claim import hold, in_use
from gradwire.trainer.launch.environment import CONTROLLER, Controller, cores, set_threads
from gradwire.trainer.launch.errors import LaunchError, PlacementError, StoppedBeforeStart
from gradwire.trainer.launch.fork_server import ForkServer
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.logs import log_file, tail
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.launch.streams import say

if TYPE_CHECKING:
    from gradwire.trainer.launch.agent import Outcome

WORKER = ("-m", "gradwire.trainer.worker")


@dataclass(frozen=True)
class HostPlan:
    """What this host contributes to the run.

    Attributes:
        processes: Workers on this host.
        hosts: How many there are, or may be.
        host: Index of this host, or None: order of arrival.
        endpoint: Where the hosts meet, or None for a single host.
        restarts: How often the workers are restarted after one was killed or lost.
        grace: Seconds that they have to save after a signal.
        wait: Seconds that hosts which come and go wait for each other.
    """

    processes: int
    hosts: Hosts
    host: int | None
    endpoint: str | None
    restarts: int
    grace: float
    wait: float = 120.0


def plan(launch: Mapping[str, Any], controller: Controller) -> HostPlan:
    """This host's plan from the `launch` section and what an outer launcher says.

    Raises:
        PlacementError: several hosts without an endpoint.
    """
    from gradwire.schedulers import Duration

    hosts = Hosts.of(launch["hosts"])
    if controller.hosts and not hosts.elastic:
        hosts = Hosts.of(controller.hosts)
    endpoint = launch["endpoint"] or controller.endpoint
    if hosts.most > 1 and not endpoint:
        raise PlacementError(
            f"launch.hosts={hosts} needs launch.endpoint=host:port: the host of that name serves it, and every host "
            "runs the same command."
        )
    return HostPlan(
        processes=count_processes(launch["processes"], launch["device"]),
        hosts=hosts,
        host=controller.host,
        endpoint=endpoint if hosts.most > 1 else None,
        restarts=launch["restarts"],
        grace=Duration.parse(launch["grace"]).seconds,
        wait=Duration.parse(launch["wait"]).seconds,
    )


def count_processes(wanted: int | str, device: str) -> int:
    """The workers of one host: `auto` is one for each GPU, or two on a host without GPUs (one if it has one core)."""
    if wanted != "auto":
        return int(wanted)
    if device != "cpu":
        import torch

        if torch.cuda.is_available() and torch.cuda.device_count() > 0:
            return torch.cuda.device_count()
    return min(2, cores())


def launch(
    job: Job, controller: Controller, signals: ControllerSignals, ranks: ForkServer, program: tuple[str, ...] = WORKER
) -> int:
    """Run a job on this host's workers and say how it went.

    Args:
        job: The composed and validated job.
        controller: What an outer launcher says about this host.
        signals: What this process is told, installed already.
        ranks: Starts the workers.
        program: The workers' program, as Python's own arguments.

    Returns:
        The exit code of the command.

    Raises:
        LaunchError: the run cannot start.
    """
    host = plan(job.config["launch"], controller)
    if host.hosts.most == 1 and job.run_dir is None:
        job = job.at(run_directory.create(job.config, job.overrides))
    release = _open(job) if host.hosts.most == 1 else lambda: None
    try:
        outcome, run_dir = _run(job, host, signals, ranks, program)
    except LaunchError as error:
        ours = job.run_dir is not None and job.mode == "train" and run_directory.begun(job.run_dir)
        if job.run_dir is not None and ours and (host.hosts.most == 1 or not in_use(job.run_dir)):
            run_directory.write_status(job.run_dir, run_directory.status_of(error.exit_code), error.exit_code)
        raise
    except StoppedBeforeStart:
        if job.run_dir is not None and job.restore is None:
            run_directory.discard(job.run_dir)  # so that the same command can be run again
        raise
    finally:
        release()
    _close(job, run_dir, outcome)
    return outcome.exit_code


def _open(job: Job) -> Callable[[], None]:
    """Claim the run directory, where it is known already."""
    if job.run_dir is None or job.mode != "train":
        return lambda: None
    release = hold(job.run_dir, job.patience)
    if job.restore is None:  # else once the snapshot was found to fit (`WorkerContext.accept`)
        run_directory.write_status(job.run_dir, "running")
    say(f"run       {run_directory.shown_as(job.run_dir)}")
    return release


def _close(job: Job, run_dir: Path | None, outcome: "Outcome") -> None:
    if run_dir is None or job.mode != "train":
        return
    code, first = outcome.exit_code, outcome.failure
    failure = None if first is None else {"kind": first.kind, "rank": first.rank, "message": first.message}
    if run_directory.begun(run_dir) and not in_use(run_dir):
        try:
            run_directory.write_status(run_dir, run_directory.status_of(code), code, failure)
        except OSError as error:  # a full disk does not change how the run went
            say(f"{error.filename}: {error.strerror}")
    elif not run_directory.recorded(
        run_dir, code
    ):  # nor did another host: the run was refused, what was said before holds
        return
    for line in run_directory.closing_lines(run_dir, code, job.store_url):
        say(line)


def _run(
    job: Job, host: HostPlan, signals: ControllerSignals, ranks: ForkServer, program: tuple[str, ...]
) -> tuple["Outcome", Path | None]:
    """Meet the other hosts, run the agent, show the first failure."""
    from gradwire.trainer.launch.context import SAVED
    from gradwire.trainer.launch.meeting import meet
    from gradwire.trainer.launch.supervise import supervise
    from gradwire.trainer.worker import RUN_DIR_KEY

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    _prepare_environment(host)
    meeting = meet(host, (RUN_DIR_KEY, SAVED), say)

    def run_dir() -> Path | None:
        shared = meeting.read(RUN_DIR_KEY)
        return job.run_dir or (None if shared is None else Path(shared))

    def log_tail(rank: int) -> str:
        directory = run_dir()
        return "" if directory is None else tail(log_file(directory, rank, job.mode))

    with tempfile.TemporaryDirectory(prefix="gradwire-") as session:
        path = Path(session) / "job.json"
        path.write_text(job.to_json())
        arguments = (*program, "--job", str(path))
        outcome = supervise(host, meeting, ranks, arguments, session, signals, log_tail)
        directory = run_dir()
        meeting.leave(patience=15.0)
    if outcome.early:
        raise StoppedBeforeStart("The signal came before the workers had met: run the same command again.")
    if outcome.failure is not None:
        sys.stderr.write(f"\n{outcome.failure.render()}\n\n")
    return outcome, directory


def _prepare_environment(host: HostPlan) -> None:
    """What the workers inherit: their controller, their share of the cores, the network interface."""
    from gradwire.trainer.launch.rendezvous import interface_towards, parse_endpoint

    os.environ[CONTROLLER] = str(os.getpid())
    set_threads(os.environ, host.processes)
    address = parse_endpoint(host.endpoint)[0] if host.endpoint else "127.0.0.1"
    if (interface := interface_towards(address)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
