"""A laboratory of several hosts on one machine: network namespaces joined by links of a set rate.

    python benchmarks/netlab.py --check [--hosts N] [--rate 200mbit] [--mb 16]

    with Netlab(hosts=2, rate="200mbit") as lab, lab.ranks(2) as ranks:
        answers = ranks(function, argument)     # function(rank, argument) on every rank, in processes started once

Every host is a namespace with a loopback device and one device `eth0`. Two hosts are joined by one veth pair, more by a
bridge in a namespace of its own. tc's token bucket limits both ends of each link, so a host sends and receives at the
rate at once. Ranks of one host talk over its loopback, which is neither limited nor counted. Every host's TCP has the
same congestion control, whatever this machine's own is: bbr, for one, lets what goes over a link at once cost up to a
tenth of its rate. Needs root and iproute2.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.netlab_ranks import Finished, Ranks

ROOT = Path(__file__).parents[1]
DEVICE = "eth0"
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}  # bits of CapEff


class NetlabError(RuntimeError):
    """The laboratory cannot be built or used: says which command failed and how."""


class Netlab:
    """Hosts on this machine, from `with` to the end of its block.

    Whatever ends the block (an exception, SIGINT, SIGTERM in the main thread) the processes and namespaces are taken
    down. What a killed process left behind is removed when the next laboratory of the same prefix is built.

    Args:
        hosts: Namespaces to build, 1 to 250.
        rate: Of each host's link, in each direction, as tc writes it: "200mbit", "1gbit". Unlimited where None.
        burst: Bytes that may pass at once after a pause, as tc writes them.
        latency: The longest wait in the queue before packets are dropped, as tc writes it.
        congestion_control: Of TCP; one that the kernel has and allows in a namespace, as it does reno.
        prefix: Of the namespaces' names.

    Raises:
        NetlabError: Hosts or rate that cannot be.
    """

    def __init__(
        self,
        hosts: int = 2,
        rate: str | None = "200mbit",
        burst: str = "256kb",
        latency: str = "50ms",
        congestion_control: str = "reno",
        prefix: str = "netlab",
    ) -> None:
        if not 1 <= hosts <= 250:
            raise NetlabError(f"hosts is {hosts}; expected 1 to 250")
        self.bytes_per_second = None if rate is None else _bytes_per_second(rate)
        self.rate, self.burst, self.latency, self.prefix = rate, burst, latency, prefix
        self.congestion_control = congestion_control
        name = f"{prefix}-{os.getpid()}-{_started(os.getpid())}-{uuid.uuid4().hex[:6]}"
        self.namespaces = tuple(f"{name}-h{host}" for host in range(hosts))
        self.addresses = tuple(f"10.77.0.{host + 1}" for host in range(hosts))
        self._bridge = None if hosts == 2 else f"{name}-bridge"
        self._old_handler: Any = None
        self._ports = iter(range(29500, 65000))

    @staticmethod
    def requirements() -> str | None:
        """Why no laboratory can be built here, or None."""
        missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        if sys.platform != "linux":
            return f"network namespaces need Linux, this is {sys.platform}"
        if os.geteuid() != 0:
            return "network namespaces need root"
        if missing:
            return f"{' and '.join(missing)} not found: install iproute2"
        lacking = [name for name, bit in CAPABILITIES.items() if not _effective_capabilities() >> bit & 1]
        if lacking:
            return f"this root has no {' and no '.join(lacking)} (a container without --privileged?)"
        try:
            with Netlab(prefix="netlab-probe"):
                return None
        except NetlabError as error:
            return str(error)

    def __enter__(self) -> "Netlab":
        _sweep(self.prefix)
        self._catch_termination()
        try:
            self._build()
        except BaseException:
            self._take_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_down()

    def sent_bytes(self) -> tuple[int, ...]:
        """Bytes that each host has sent over its link since it was built, headers and acknowledgements included."""
        counter = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
        return tuple(int(_call("ip", "netns", "exec", name, "cat", counter)) for name in self.namespaces)

    def run(
        self,
        command: Sequence[str] | Callable[[int], Sequence[str]],
        ranks_per_host: int = 1,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> "list[Finished]":
        """Run a command (or `command(rank)`) as every rank, consecutive ranks on a host, and wait for all of them.

        Every process has the environment that torch's launcher would give it, one thread, and a group of its own, which
        is killed after `timeout` seconds.
        """
        from benchmarks.netlab_ranks import run, seats

        return run(seats(self, ranks_per_host, environment or {}), command, timeout)

    def ranks(
        self, ranks_per_host: int = 1, environment: Mapping[str, str] | None = None, timeout: float = 60
    ) -> "Ranks":
        """Processes joined by gloo that are started once and call functions together, see `Ranks`."""
        from benchmarks.netlab_ranks import Ranks, seats

        return Ranks(seats(self, ranks_per_host, environment or {}), timeout)

    def call(self, function: Callable[..., Any], *arguments: Any, ranks_per_host: int = 1) -> list[Any]:
        """What `function(rank, *arguments)` answers on every rank, in processes started for this call."""
        with self.ranks(ranks_per_host) as ranks:
            return ranks(function, *arguments)

    def next_port(self) -> int:
        """A port for a rendezvous on the first host that no other one of this laboratory uses."""
        return next(self._ports)

    def _build(self) -> None:
        for name in self._all_namespaces():
            _call("ip", "netns", "add", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
            set_it = ("sh", "-c", 'echo "$0" > "$1"', self.congestion_control, CONGESTION_CONTROL)
            _call("ip", "netns", "exec", name, *set_it)
        if self._bridge is None:
            one, other = self.namespaces
            _call("ip", "link", "add", DEVICE, "netns", one, "type", "veth", "peer", "name", DEVICE, "netns", other)
        else:
            self._join_by_bridge(self._bridge)
        for name, address in zip(self.namespaces, self.addresses, strict=True):
            _call("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            self._bring_up(name, DEVICE)

    def _join_by_bridge(self, bridge: str) -> None:
        _call("ip", "-n", bridge, "link", "add", "bridge0", "type", "bridge")
        self._bring_up(bridge, "bridge0", limited=False)
        for host, name in enumerate(self.namespaces):
            port = f"port{host}"
            _call("ip", "link", "add", DEVICE, "netns", name, "type", "veth", "peer", "name", port, "netns", bridge)
            _call("ip", "-n", bridge, "link", "set", port, "master", "bridge0")
            self._bring_up(bridge, port)

    def _bring_up(self, namespace: str, device: str, limited: bool = True) -> None:
        _call("ip", "-n", namespace, "link", "set", device, "addrgenmode", "none")  # no IPv6: gloo might choose it
        _call("ip", "-n", namespace, "link", "set", device, "up")
        if limited and self.rate is not None:
            limit = ("rate", self.rate, "burst", self.burst, "latency", self.latency)
            _call("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)

    def _all_namespaces(self) -> tuple[str, ...]:
        return self.namespaces if self._bridge is None else (*self.namespaces, self._bridge)

    def _catch_termination(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._old_handler = signal.signal(signal.SIGTERM, _terminate)

    def _take_down(self) -> None:
        with _undisturbed():
            _remove(self._all_namespaces())
        if self._old_handler is not None:
            signal.signal(signal.SIGTERM, self._old_handler)
            self._old_handler = None


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the process wait."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetlabError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip() or done.stdout}")
    return done.stdout


def _existing() -> list[str]:
    return [line.split()[0] for line in _call("ip", "netns", "list").splitlines() if line.strip()]


def _remove(names: Sequence[str]) -> None:
    """Kill what runs in the namespaces and delete them with their devices; those that do not exist are passed over."""
    for name in set(names) & set(_existing()):
        try:
            for process in _call("ip", "netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _call("ip", "netns", "delete", name)
        except NetlabError:
            if name in _existing():  # else somebody else removed it meanwhile
                raise


def _sweep(prefix: str) -> None:
    """Remove laboratories of this prefix whose process is gone."""
    pattern = re.compile(rf"{re.escape(prefix)}-(\d+)-(\d+)-[0-9a-f]{{6}}-(h\d+|bridge)")
    found = [(name, pattern.fullmatch(name)) for name in _existing()]
    _remove([name for name, match in found if match and _started(int(match[1])) != int(match[2])])


def _started(process: int) -> int | None:
    """When a process was started, in ticks since boot: with its number this is unique. None where it is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _effective_capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)[0], 16)


def _bytes_per_second(rate: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate)
    if match is None or float(match[1]) == 0:
        raise NetlabError(f"rate is {rate!r}; expected a number of bits a second such as '200mbit' or '1gbit'")
    return float(match[1]) * UNITS[match[2]] / 8


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # run by its path, the folder above is not on it
    from benchmarks.netlab_check import main

    main()
