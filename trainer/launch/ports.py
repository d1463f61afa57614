"""TCP ports for servers that another process will start."""

import secrets
import socket
from pathlib import Path

_PORTS = range(20_000, 65_536)


def free_port() -> int:
    """A TCP port on which nobody listens, for a process that will.

    The kernel hands it out neither to those who ask for any port, who could have it before that process does, nor to
    clients: one that tries a port of the kernel's range again and again on its own machine can be connected to itself.
    """
    lowest, highest = _kernels_own()
    ports = [port for port in _PORTS if not lowest <= port <= highest] or _PORTS
    while not _is_free(port := secrets.choice(ports)):  # not `random`, which is often seeded alike
        pass
    return port


def _kernels_own() -> tuple[int, int]:
    """The first and the last port that the kernel hands out; where it does not tell, those of IANA (RFC 6335)."""
    try:
        lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except OSError:
        return 49152, 65535
    return lowest, highest


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
