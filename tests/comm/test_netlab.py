"""The network laboratory itself: real namespaces, links and processes. Skipped, with the reason, without root."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.netlab import CONGESTION_CONTROL, Netlab, NetlabError
from tests.ranks import PATIENCE

MB = 2**20
Call = Callable[..., list[Any]]


def reduced(rank: int, count: int, members: list[int] | None) -> tuple[float, int]:
    """The sum of the ranks' numbers over `members` (all where None), and what this host's device sent meanwhile."""
    device = Path(f"/sys/class/net/{os.environ['GLOO_SOCKET_IFNAME']}/statistics/tx_bytes")
    groups = [dist.group.WORLD] if members is None else [dist.new_group(each) for each in (members, [2, 3])]
    mine = groups[0] if members is None or rank in members else groups[1]
    tensor = torch.full((count,), float(rank))
    before = int(device.read_text())
    dist.barrier()
    dist.all_reduce(tensor, group=mine)
    dist.barrier()  # this host's other rank has begun after the first look, and has sent everything by the second
    sent = int(device.read_text()) - before
    return tensor[0].item(), sent


def seconds(rank: int, count: int) -> float:
    tensor = torch.ones(count)
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def congestion_control(rank: int) -> str:
    return Path(CONGESTION_CONTROL).read_text().strip()


def surroundings(rank: int) -> list[str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "MASTER_ADDR")
    return [os.environ[name] for name in names]


def fail_on_one(rank: int) -> int:
    if rank == 1:
        raise ValueError("one is out")
    return rank


def wait_on_one(rank: int, go: Path) -> int:
    while rank == 1 and not go.exists():
        time.sleep(0.01)
    return rank


def processes_in(namespace: str) -> str:
    return subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True).stdout


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "took longer than 240 s"
        time.sleep(0.05)


def test_ranks_on_two_hosts_reduce_together_and_their_bytes_are_counted(lab_ranks: Call) -> None:
    answers = lab_ranks(2, 2, reduced, MB // 4, None)
    assert [value for value, _ in answers] == [6.0] * 4
    assert all(sent > MB for _, sent in answers)  # each host must send half of the sum and its half of the terms


def test_ranks_of_one_host_do_not_use_the_link(lab_ranks: Call) -> None:
    answers = lab_ranks(2, 2, reduced, 4 * MB, [0, 1])
    assert [value for value, _ in answers] == [1.0, 1.0, 5.0, 5.0]
    assert all(sent < MB // 4 for _, sent in answers)  # of 16 MB that went over the loopback


def test_ranks_find_the_environment_of_torchs_launcher(lab_ranks: Call) -> None:
    assert lab_ranks(2, 2, surroundings) == [
        [str(rank), str(rank % 2), "4", "2", "1", "10.77.0.1"] for rank in range(4)
    ]


def test_links_are_limited_to_their_rate(lab_ranks: Call) -> None:
    answers = lab_ranks(2, 2, seconds, 2 * MB)
    assert min(answers) > 8 * MB / 25e6 * 0.9  # 8 MB must leave each host at 25 MB/s, of which 1 % may burst


def test_every_host_has_the_same_congestion_control(lab_ranks: Call) -> None:
    assert lab_ranks(2, 2, congestion_control) == ["reno"] * 4


def test_a_congestion_control_that_the_kernel_has_not_is_refused(netlab: type[Netlab]) -> None:
    lab = netlab(congestion_control="nonsense")
    with pytest.raises(NetlabError, match="nonsense"):
        lab.__enter__()
    assert not any(name in namespaces() for name in lab.namespaces)


def test_four_hosts_meet_over_a_bridge(netlab: type[Netlab]) -> None:
    connect = (
        "import socket, os, time\n"
        "if os.environ['RANK'] == '3':\n"
        "    server = socket.create_server(('10.77.0.4', 7000), backlog=8)\n"
        "    for _ in range(3): server.accept()[0].sendall(b'hello')\n"
        "else:\n"
        "    stream = None\n"
        "    while stream is None:\n"
        "        try: stream = socket.create_connection(('10.77.0.4', 7000))\n"
        "        except OSError: time.sleep(0.05)\n"
        "    print(stream.recv(5).decode())\n"
    )
    with netlab(hosts=4, rate=None) as lab:
        finished = lab.run([sys.executable, "-c", connect], timeout=300)
        assert lab.sent_bytes()[3] > 0
    assert [each.stdout for each in finished] == ["hello\n"] * 3 + [""], [each.stderr for each in finished]


def test_commands_give_output_exit_codes_and_are_killed_when_they_take_too_long(netlab: type[Netlab]) -> None:
    with netlab() as lab:
        told = lab.run(["sh", "-c", "echo out $RANK; echo err >&2; exit $((3 + RANK))"], timeout=300)
        killed = lab.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=2)
        wait_until(lambda: not any(map(processes_in, lab.namespaces)))  # whole groups are gone, once they are reaped
    assert [(each.returncode, each.stdout, each.stderr, each.timed_out) for each in told] == [
        (3 + rank, f"out {rank}\n", "err\n", False) for rank in range(2)
    ]
    assert [(each.returncode, each.timed_out) for each in killed] == [(-signal.SIGKILL, True)] * 2


def test_two_laboratories_stand_side_by_side(netlab: type[Netlab]) -> None:
    with netlab() as one, netlab() as other:
        assert not set(one.namespaces) & set(other.namespaces)
        assert all(name in namespaces() for name in (*one.namespaces, *other.namespaces))
    assert not any(name in namespaces() for name in (*one.namespaces, *other.namespaces))


def test_an_exception_takes_the_laboratory_down(netlab: type[Netlab]) -> None:
    with pytest.raises(KeyboardInterrupt), netlab() as lab:
        raise KeyboardInterrupt
    assert not any(name in namespaces() for name in lab.namespaces)


def test_a_failure_while_building_leaves_nothing(netlab: type[Netlab]) -> None:
    lab = netlab(burst="nonsense")
    with pytest.raises(NetlabError, match=r"tc .*burst nonsense.* failed"):
        lab.__enter__()
    assert not any(name in namespaces() for name in lab.namespaces)


def laboratory_of_its_own(prefix: str) -> subprocess.Popen[str]:
    """Its first line of output says that it stands. What a signal raises is lost in the middle of an import."""
    script = (
        "import benchmarks.netlab_ranks\n"
        f"from benchmarks.netlab import Netlab\nwith Netlab(prefix={prefix!r}) as lab:\n"
        "    print(*lab.namespaces, flush=True)\n    lab.run(['sleep', '100'], timeout=100)\n"
    )
    root = Path(__file__).parents[2]
    return subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True)


def test_sigterm_takes_the_laboratory_down(netlab: type[Netlab]) -> None:
    with laboratory_of_its_own("netlab-term") as process:
        assert process.stdout is not None
        names = process.stdout.readline().split()
        assert len(names) == 2 and all(name in namespaces() for name in names)
        process.terminate()
        assert process.wait(timeout=300) == 128 + signal.SIGTERM
    assert not any(name in namespaces() for name in names)


def test_what_a_killed_process_left_is_removed_by_the_next_of_its_prefix(netlab: type[Netlab]) -> None:
    with laboratory_of_its_own("netlab-kill") as process:
        assert process.stdout is not None
        names = process.stdout.readline().split()
        process.kill()
    with netlab(prefix="netlab-other"):
        assert all(name in namespaces() for name in names)
    with netlab(prefix="netlab-kill") as lab:
        assert not any(name in namespaces() for name in names)
        assert all(name in namespaces() for name in lab.namespaces)


def test_a_failing_rank_is_named_and_a_late_or_dead_one_too(netlab: type[Netlab], tmp_path: Path) -> None:
    def late() -> bool:
        answers = ranks.attempt(wait_on_one, tmp_path / "go")
        return [answer.error for answer in answers] == [None, "no answer within 2 s"]

    with netlab(rate=None) as lab, lab.ranks(timeout=PATIENCE) as ranks:
        failed = ranks.attempt(fail_on_one)
        assert [answer.value for answer in failed] == [0, None]
        assert "ValueError: one is out" in str(failed[1].error)
        ranks.timeout = 2
        wait_until(late)
        (tmp_path / "go").touch()
        ranks.timeout = PATIENCE
        assert ranks.attempt(surroundings)[1].value[0] == "1"  # the late answer is not taken for it
        os.kill(ranks.pids[0], signal.SIGKILL)
        dead = ranks.attempt(surroundings)
        assert str(dead[0].error).startswith("died with -9") and dead[1].error is None
        with pytest.raises(NetlabError, match=r"tests.comm.test_netlab.surroundings failed:\nrank 0: died with -9"):
            ranks(surroundings)
        assert not ranks.alive


def test_a_rate_that_is_none_is_refused() -> None:
    for rate in ("200", "fast", "0mbit", "200 mbit"):
        with pytest.raises(NetlabError, match="expected a number of bits a second"):
            Netlab(rate=rate)
    assert Netlab(rate="1.5gbit").bytes_per_second == 187.5e6
    with pytest.raises(NetlabError, match="hosts is 0"):
        Netlab(hosts=0)
