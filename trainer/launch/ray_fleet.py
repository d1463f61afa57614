"""The agents of one attempt on a Ray cluster: placed, told what to run, watched, and taken away."""

import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer.launch.errors import HostLostError, PlacementError
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.host import order
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.ray_agent import HostAgent, Line, Spot
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.launch.streams import say

_ARRIVAL = 900.0  # seconds that Ray has to find room for all hosts
_POLL = 1.0
_KEPT = 40  # last lines of each host but the first, shown where one is lost
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class End:
    """How an attempt ended.

    Attributes:
        exit_code: What the command returns.
        lost: Why the hosts could not end it themselves, in words, or None.
    """

    exit_code: int
    lost: str | None = None


class Fleet:
    """One agent for each host.

    Args:
        ray: The package, connected.
        agents: Their handles, host by host.
        spots: Where they are.
    """

    def __init__(self, ray: Any, agents: Sequence[Any], spots: Sequence[Spot]) -> None:
        self._ray, self._agents, self._spots = ray, agents, spots
        self._kept: dict[int, deque[str]] = {host: deque(maxlen=_KEPT) for host in range(1, len(agents))}
        self._forwarded = False

    def run(self, job: Job, processes: int, signals: ControllerSignals, program: tuple[str, ...]) -> End:
        """Start the hosts' controllers and pass signals on and output back until all have ended, or one is lost."""
        hosts, first = len(self._agents), self._spots[0]
        endpoint = f"{first.address}:{first.port}" if hosts > 1 else None
        started = []
        for host, agent in enumerate(self._agents):
            told = order(job, hosts, host, endpoint, program)
            started.append(agent.start.remote(told, str(Path.cwd()), self._threads(host, processes)))
        self._ray.get(started)
        signals.workers_run = True
        return self._watch(signals)

    def _threads(self, host: int, processes: int) -> str:
        """OMP_NUM_THREADS of a host's workers: what this command was given, or its share of the machine's cores."""
        spot = self._spots[host]
        together = Counter(each.node for each in self._spots)[spot.node] * processes
        return os.environ.get(_THREADS) or str(max(1, spot.cores // together))

    def _watch(self, signals: ControllerSignals) -> End:
        polls = {agent.poll.remote(_POLL): host for host, agent in enumerate(self._agents)}
        codes: dict[int, int] = {}
        while polls:
            ready, _ = self._ray.wait(list(polls), timeout=_POLL)
            self._forward(signals)
            if signals.insisted:
                return End(int(ExitCode.FAILED), "A second SIGINT ended the run.")
            for reference in ready:
                host = polls.pop(reference)
                try:
                    lines, code = self._ray.get(reference)
                except self._ray.exceptions.RayError as error:
                    return self._lost(host, str(error).splitlines()[0])
                self._show(host, lines)
                if code is None:
                    polls[self._agents[host].poll.remote(_POLL)] = host
                elif code < 0:
                    return self._lost(host, f"its controller was ended by {signal.Signals(-code).name}")
                else:
                    codes[host] = code
        return End(_of_all([codes[host] for host in sorted(codes)]))

    def _forward(self, signals: ControllerSignals) -> None:
        if signals.first is not None and not self._forwarded:
            self._forwarded = True
            for agent in self._agents:
                agent.tell.remote(int(signals.first))

    def _show(self, host: int, lines: Sequence[Line]) -> None:
        """The first host's output is the run's; the others' is kept, since each says the same at the end."""
        for name, text in lines:
            if host > 0:
                self._kept[host].append(text)
            elif name == "out":
                say(text, end="")
            else:
                sys.stderr.write(text)

    def _lost(self, host: int, reason: str) -> End:
        for other, lines in self._kept.items():
            sys.stderr.write("".join(f"host {other}: {line}" for line in lines))
        return End(int(ExitCode.FAILED), f"Host {host} ({self._spots[host].address}) was lost: {reason}.")


def _of_all(codes: Sequence[int]) -> int:
    """The hosts' exit codes as one: the first failure, else preempted, else done."""
    failed = [code for code in codes if code not in (ExitCode.DONE, ExitCode.PREEMPTED)]
    return failed[0] if failed else max(codes)


@contextmanager
def fleet(ray: Any, bundle: dict[str, float], hosts: int) -> Iterator[Fleet]:
    """Place an agent for each host: on nodes apart where there are as many, else wherever there is room.

    Raises:
        HostLostError: there was no room in a quarter of an hour.
        PlacementError: an agent could not start on its node.
    """
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    nodes = sum(node["Alive"] for node in ray.nodes())
    strategy = "STRICT_SPREAD" if nodes >= hosts > 1 else "PACK"
    group = placement_group([bundle] * hosts, strategy=strategy)
    agents: list[Any] = []
    try:
        _await_room(group, bundle, hosts, strategy)
        for index in range(hosts):
            where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
            options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "max_concurrency": 3}
            agents.append(ray.remote(HostAgent).options(scheduling_strategy=where, **options).remote())
        yield Fleet(ray, agents, _spots(ray, agents))
    finally:
        for agent in agents:
            with suppress(ray.exceptions.RayError):
                ray.kill(agent)
        remove_placement_group(group)


def _await_room(group: Any, bundle: dict[str, float], hosts: int, strategy: str) -> None:
    needed = f"{hosts} × {bundle} ({strategy})"
    began, told = time.monotonic(), False
    while not group.wait(timeout_seconds=1):
        waited = time.monotonic() - began
        if waited > _ARRIVAL:
            raise HostLostError(f"Ray found no room for {needed} within {_ARRIVAL:.0f} s.")
        if waited > 10 and not told:
            say(f"waiting for Ray to find room for {needed}")
            told = True


def _spots(ray: Any, agents: Sequence[Any]) -> list[Spot]:
    try:
        spots: list[Spot] = ray.get([agent.spot.remote() for agent in agents])
    except ray.exceptions.RayError as error:
        raise PlacementError(
            f"An agent could not start; its node needs gradwire as this one has it: {error}"
        ) from error
    return spots
