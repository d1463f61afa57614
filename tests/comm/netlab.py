"""Hosts of a network laboratory for tests, see benchmarks/netlab.py."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.netlab import Netlab
from benchmarks.netlab_ranks import Ranks
from tests.ranks import PATIENCE


def _install_iproute2() -> str | None:
    """Install the tools where they are missing and that is allowed; why it failed, or None."""
    tools_exist = shutil.which("ip") and shutil.which("tc")
    if tools_exist or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]  # another worker of the suite may be installing too
    for command in ([*apt, "update"], [*apt, "install", "--yes", "--no-install-recommends", "iproute2"]):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}"
    return None


@pytest.fixture(scope="session")
def netlab() -> type[Netlab]:
    """`with netlab(hosts=2, rate="200mbit") as lab:`; where no laboratory can be built, skips and says why."""
    installation = _install_iproute2()
    reason = Netlab.requirements()
    if reason:
        pytest.skip(f"no network laboratory: {reason}" + (f"; {installation}" if installation else ""))
    return Netlab


@pytest.fixture(scope="session")
def lab_ranks(netlab: type[Netlab]) -> Iterator[Callable[..., list[Any]]]:
    """`lab_ranks(hosts, ranks_per_host, function, *arguments)` answers what `function(rank, *arguments)` gave on each.

    The links are limited to 200 Mbit/s. Laboratories and processes are started once and used by many tests.
    """
    with ExitStack() as stack:
        pools: dict[tuple[int, int], Ranks] = {}

        def call(hosts: int, ranks_per_host: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
            key = (hosts, ranks_per_host)
            if key not in pools or not pools[key].alive:
                lab = stack.enter_context(netlab(hosts))
                pools[key] = stack.enter_context(lab.ranks(ranks_per_host, timeout=PATIENCE))
            return pools[key](function, *arguments)

        yield call
