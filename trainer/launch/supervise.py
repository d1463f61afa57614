"""A host's workers from their start to the outcome, whichever way the hosts meet."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch.distributed.elastic.agent.server.api import WorkerSpec

from gradwire.trainer.launch.agent import Agent, Outcome
from gradwire.trainer.launch.elastic_agent import ElasticAgent
from gradwire.trainer.launch.follower import Follower
from gradwire.trainer.launch.fork_server import ForkServer
from gradwire.trainer.launch.leader import Leader
from gradwire.trainer.launch.rendezvous import Meeting
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.launch.streams import say

if TYPE_CHECKING:
    from gradwire.trainer.launch.local import HostPlan


def supervise(
    host: "HostPlan",
    meeting: Meeting | Leader | Follower,
    ranks: ForkServer,
    program: tuple[str, ...],
    error_files: str,
    signals: ControllerSignals,
    log_tail: Callable[[int], str],
) -> Outcome:
    """Start this host's workers, watch them to their end, and say what became of them.

    Args:
        host: What it contributes.
        meeting: Where the hosts meet.
        ranks: Starts the workers.
        program: The workers', as Python's own arguments.
        error_files: Folder for the workers' error files.
        signals: What this process was told.
        log_tail: The end of a rank's log, for ranks that died without a word.

    Raises:
        LaunchError: the hosts do not meet, or lose each other.
        StoppedBeforeStart: a signal came before any worker ran.
    """
    spec = WorkerSpec(
        role="worker",
        local_world_size=host.processes,
        rdzv_handler=meeting,
        entrypoint=program[0],
        args=program[1:],
        max_restarts=0 if host.hosts.elastic else host.restarts,  # else the leader counts
        monitor_interval=0.1,
    )
    told = (ranks, error_files, signals, host.grace, log_tail, say)
    if isinstance(meeting, Meeting):
        agent = Agent(spec, meeting, *told)
        agent.run()
        return agent.outcome
    elastic = ElasticAgent(spec, meeting, *told)
    elastic.take_part()
    return elastic.outcome
