"""How the hosts of a run meet: at one store, which the host that `launch.endpoint` names serves."""

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import psutil
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from gradwire.trainer.launch.errors import HostLostError, PlacementError

_POLL = 0.1
_ARRIVAL = 900.0  # seconds that the hosts wait for each other at the start
_RETURN = 120.0  # seconds that they wait for each other before a restart
_STORE_TIMEOUT = timedelta(seconds=60)
Answer = TypeVar("Answer")


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 address in brackets).

    Raises:
        PlacementError: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise PlacementError(f"launch.endpoint must read host:port with a port from 1 to 65535, found {text!r}.")
    return host.strip("[]"), int(port)


def is_this_machine(host: str) -> bool:
    """Whether a host name or address is one of this machine's."""
    try:
        wanted = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    own = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    return bool(wanted & own)


def interface_towards(host: str) -> str | None:
    """The network interface through which this machine reaches a host, or None if that cannot be told."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] == own for address in addresses):
            return str(name)
    return None


def serve(address: str, port: int) -> TCPStore:
    """The store at which hosts meet, on this one; port 0 takes any.

    Raises:
        RuntimeError: the port is taken.
    """
    return TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)


def connect(address: str, port: int, patience: float) -> TCPStore:
    """The store that another host serves, once it does.

    Raises:
        HostLostError: nobody did for `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=5).close()
            # a process that is stopped accepts and is mute, and the store's own time-out does not cover that
            return within(max(left, 1.0), lambda: _client(address, port))
        except (OSError, RuntimeError) as error:
            if left < 0:
                raise HostLostError(
                    f"No host answered at launch.endpoint={address}:{port} within {patience:.0f} s "
                    f"({str(error).splitlines()[0]}). The host of that name must run the same command."
                ) from error
            time.sleep(0.3)


def _client(address: str, port: int) -> TCPStore:
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)


def within(seconds: float, action: Callable[[], Answer]) -> Answer:
    """What `action` returns, or the RuntimeError that it raises; it is left behind in a thread where it takes longer.

    Raises:
        TimeoutError: it took longer.
    """
    answers: list[Answer | RuntimeError] = []

    def act() -> None:
        try:
            answers.append(action())
        except RuntimeError as error:
            answers.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    if isinstance(answers[0], RuntimeError):
        raise answers[0]
    return answers[0]


class Handler(RendezvousHandler):
    """What torch's agent asks of a way to meet beside the meeting itself, which tells the workers where it was."""

    def get_backend(self) -> str:
        """Name of this rendezvous."""
        return "gradwire"

    @property
    def use_agent_store(self) -> bool:
        """Workers use the controllers' store."""
        return True

    def is_closed(self) -> bool:
        """Never, for torch's agent."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """None: torch's agent restarts nothing by itself."""
        return 0

    def get_run_id(self) -> str:
        """Name of the run among the store's users."""
        return "gradwire"

    def shutdown(self) -> bool:
        """Nothing to shut down."""
        return True


class Meeting(Handler):
    """A fixed set of hosts that meet at one store, at the start and again before every restart.

    Torch's own dynamic rendezvous unpickles what it finds in the store; here the store holds JSON and numbers only.

    Args:
        endpoint: `host:port` of the store, or None for a run on this host alone.
        hosts: Number of hosts.
        host: Index of this host; None: the one that serves the store is 0, the others count in order of arrival.
    """

    def __init__(self, endpoint: str | None, hosts: int, host: int | None = None) -> None:
        self._hosts, self._round = hosts, 0
        self._silent: list[int] = []  # hosts that had nothing to say about the end of the last round
        self._address, self._port = parse_endpoint(endpoint) if endpoint else ("127.0.0.1", 0)
        self.store, self.host = self._open(host)

    def _open(self, host: int | None) -> tuple[TCPStore, int]:
        if self._hosts == 1 or host == 0 or (host is None and is_this_machine(self._address)):
            try:
                store = serve(self._address, self._port)
            except RuntimeError as error:
                if host == 0 or self._hosts == 1:
                    raise PlacementError(f"Cannot serve launch.endpoint on port {self._port}: {error}") from error
            else:
                self._port = store.port
                return store, 0
        store = connect(self._address, self._port, _ARRIVAL)
        index = host if host is not None else int(store.add("hosts", 1))
        if index >= self._hosts:
            raise PlacementError(
                f"launch.hosts={self._hosts}, but this is host number {index + 1} at {self._address}:{self._port}: "
                "is another run using the same launch.endpoint?"
            )
        return store, index

    @property
    def round(self) -> int:
        """How often the hosts have met."""
        return self._round

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all hosts have arrived for the next round.

        Raises:
            HostLostError: a host did not come.
        """
        self._round += 1
        store = PrefixStore(f"round-{self._round}", self.store)
        self._tell(store, f"arrived/{self.host}", "1")
        patience = _ARRIVAL if self._round == 1 else _RETURN
        missing = self._await(store, "arrived", patience)
        if missing:
            raise HostLostError(f"Host {missing[0]} of {self._hosts} did not arrive within {patience:.0f} s.")
        return RendezvousInfo(store, self.host, self._hosts, RendezvousStoreInfo(self._address, self._port))

    def agree(self, verdict: dict[str, Any], patience: float = 20.0) -> list[dict[str, Any] | None]:
        """Exchange what each host has to say about the end of this round.

        Returns:
            The hosts' verdicts in order; None for a host that said nothing within `patience` seconds.

        Raises:
            HostLostError: the host that serves the store is gone.
        """
        if self._hosts == 1:
            return [verdict]
        store = PrefixStore(f"round-{self._round}", self.store)
        self._tell(store, f"verdict/{self.host}", json.dumps(verdict))
        self._silent = missing = self._await(store, "verdict", patience)
        return [None if host in missing else json.loads(store.get(f"verdict/{host}")) for host in range(self._hosts)]

    def leave(self, patience: float) -> None:
        """Say that this host is done; the host that serves the store stays until the others have left too.

        Hosts that said nothing about the end of the round are not waited for again.
        """
        try:
            self.store.set(f"left/{self.host}", "1")
            if self.host == 0:
                self._await(self.store, "left", patience, but=self._silent)
        except (RuntimeError, HostLostError):  # the serving host is gone already
            pass

    def _await(self, store: Store, what: str, patience: float, but: Sequence[int] = ()) -> list[int]:
        """Wait for a key of every host but these; the hosts whose key did not come."""
        deadline = time.monotonic() + patience
        missing = [host for host in range(self._hosts) if host not in but]
        while missing := [host for host in missing if not self._has(store, f"{what}/{host}")]:
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL)
        return missing

    def _tell(self, store: Store, key: str, value: str) -> None:
        self._has(store, key)  # says it when the store is gone
        store.set(key, value)

    def _has(self, store: Store, key: str) -> bool:
        try:
            return bool(store.check([key]))
        except RuntimeError as error:
            where = f"launch.endpoint={self._address}:{self._port}"
            raise HostLostError(f"The host that serves {where} is gone.") from error

    def read(self, key: str) -> str | None:
        """What the workers wrote under a key, or None if they did not or the serving host is gone."""
        try:
            return self.store.get(key).decode() if self.store.check([key]) else None
        except RuntimeError:
            return None
