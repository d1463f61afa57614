"""What a link of the laboratory carries: raw TCP and gloo against the rate that was asked for."""

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.netlab import DEVICE, Netlab

PORT = 7000
ROUNDS = 3


def raw_tcp(rank: int, address: str, nbytes: int, both: bool) -> list[float]:
    """Seconds of each transfer between rank 0, which is at `address`, and rank 1: one way or both ways at once."""
    if rank > 1:
        dist.barrier()
        return [_timed(lambda: None) for _ in range(ROUNDS)]
    with _joined(rank, address) as stream:

        def exchange() -> None:
            sender = threading.Thread(target=stream.sendall, args=(bytes(nbytes),))
            if both or rank == 0:
                sender.start()
            if both or rank == 1:
                _receive(stream, nbytes)
                stream.sendall(b"!")
            if both or rank == 0:
                sender.join()
                _receive(stream, 1)

        return [_timed(exchange) for _ in range(ROUNDS)]


def gloo_exchange(rank: int, nbytes: int) -> list[float]:
    """Seconds of each exchange of ranks 0 and 1, both ways at once by point-to-point."""
    outgoing, incoming = torch.ones(nbytes, dtype=torch.uint8), torch.empty(nbytes, dtype=torch.uint8)

    def exchange() -> None:
        if rank < 2:
            # receive first: gloo sends that are posted before the receives take turns, at half the rate
            works = [dist.irecv(incoming, 1 - rank), dist.isend(outgoing, 1 - rank)]
            for work in works:
                assert work is not None
                work.wait()

    return [_timed(exchange) for _ in range(ROUNDS)]


def gloo_all_reduce(rank: int, nbytes: int) -> list[float]:
    """Seconds of each all-reduce of all ranks."""
    tensor = torch.ones(nbytes // 4)
    return [_timed(lambda: dist.all_reduce(tensor)) for _ in range(ROUNDS)]


def check(lab: Netlab, nbytes: int) -> None:
    """Print the time, rate and bytes of each way to send `nbytes` over the links of the laboratory."""
    hosts, limit = len(lab.namespaces), lab.bytes_per_second
    print(f"{hosts} hosts, {lab.rate or 'no limit'}, {nbytes / 1e6:.1f} MB, medians of {ROUNDS}, one rank a host\n")
    print(f"{'':28}{'ms':>9}{'Mbit/s':>10}{'of the rate':>13}{'sent by host 0, MB':>20}")
    with lab.ranks() as ranks:
        for name, payload, function, arguments in (
            ("raw TCP, one way", nbytes, raw_tcp, (lab.addresses[0], nbytes, False)),
            ("raw TCP, both ways", nbytes, raw_tcp, (lab.addresses[0], nbytes, True)),
            ("gloo point-to-point, both", nbytes, gloo_exchange, (nbytes,)),
            ("gloo all_reduce", 2 * (hosts - 1) * nbytes // hosts, gloo_all_reduce, (nbytes,)),
        ):
            before = lab.sent_bytes()[0]
            seconds = statistics.median(max(each) for each in zip(*ranks(function, *arguments), strict=True))
            sent = (lab.sent_bytes()[0] - before) / ROUNDS
            share = f"{payload / seconds / limit:.3f}" if limit else "-"
            rate = 8e-6 * payload / seconds
            print(f"{name:28}{1e3 * seconds:9.1f}{rate:10.1f}{share:>13}{sent / 1e6:20.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="build a laboratory and print what its links carry")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", default="200mbit", help="of each link, or 'none'")
    parser.add_argument("--mb", type=float, default=16, help="mebibytes to send")
    options = parser.parse_args()
    reason = Netlab.requirements()
    if reason:
        parser.exit(1, f"no laboratory: {reason}\n")
    if not options.check:
        parser.exit(0, f"a laboratory can be built here; --check measures one (devices {DEVICE}, tc tbf)\n")
    with Netlab(options.hosts, None if options.rate == "none" else options.rate) as lab:
        check(lab, int(options.mb * 2**20))


def _timed(exchange: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    exchange()
    return time.perf_counter() - start


def _joined(rank: int, address: str) -> socket.socket:
    if rank == 0:
        with socket.create_server((address, PORT)) as server:
            dist.barrier()
            return server.accept()[0]
    dist.barrier()
    return socket.create_connection((address, PORT))


def _receive(stream: socket.socket, nbytes: int) -> None:
    buffer = memoryview(bytearray(min(nbytes, 2**20)))
    while nbytes:
        nbytes -= stream.recv_into(buffer, min(nbytes, len(buffer)))
