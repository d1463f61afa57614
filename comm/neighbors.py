"""Ranks on one host read from each other's memory what they would otherwise send through sockets.

The system call is process_vm_readv (Linux). It needs no memory that is set apart for it and leaves nothing behind.
"""

import ctypes
import hashlib
import os
import secrets
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.group import gather_rows, rank_of

_MOST = 1 << 30  # bytes that one call reads; Linux ends at 2 GiB
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_TOKENS, _FLAG = 2, 8 * 2  # numbers that prove whose memory it is, and where, behind them, a rank says that it gives up


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Neighbors:
    """Ranks that can read each other's memory, by their positions along an axis.

    What a rank lets others read may be changed once they said that they have read it, or after `withdraw`.

    Args:
        pids: Their processes.
        pages: Where each one's page lies in its memory: some numbers, and behind them whether it withdrew.
        own: This rank's page.
    """

    def __init__(self, pids: Sequence[int], pages: Sequence[int], own: Tensor) -> None:
        self._pids = tuple(pids)
        self._pages = tuple(pages)
        self._own = own

    def withdraw(self) -> None:
        """This rank gives up: whoever still reads from its memory fails, instead of taking what is there by then."""
        self._own[-1] = 1

    def read(self, position: int, address: int, out: Tensor) -> None:
        """Copy `out.nbytes` bytes at `address` in the memory of the rank at `position` to `out`, which is contiguous.

        Raises:
            RuntimeError: It died or withdrew.
        """
        gave_up = ctypes.c_int64(0)
        for start in range(0, out.nbytes, _MOST):
            length = min(_MOST, out.nbytes - start)
            here = [(out.data_ptr() + start, length), (ctypes.addressof(gave_up), 8)]
            there = [(address + start, length), (self._pages[position] + _FLAG, 8)]  # read behind the data
            _read(self._pids[position], here, there)
            if gave_up.value:
                raise RuntimeError("it gave up while its memory was read")


def find(group: dist.ProcessGroup, axis: str) -> Neighbors | None:
    """The ranks of `group` if each of them can read the memory of all others, found out by trying. A collective.

    Args:
        group: Ranks with CPU tensors.
        axis: What joins them, for a warning where they are on one host and cannot.
    """
    own = torch.tensor([*(secrets.randbits(62) for _ in range(_TOKENS)), 0])
    row = torch.tensor([_host(), os.getpid(), own.data_ptr(), *own[:_TOKENS].tolist()])
    rows = gather_rows(row, group)
    found = Neighbors(rows[:, 1].tolist(), rows[:, 2].tolist(), own)
    same = bool(rows[0, 0]) and bool((rows[:, 0] == rows[0, 0]).all())
    refused = _refusal(found, rows[:, 3:]) if same else "not on one host"
    refusing = gather_rows(torch.tensor([bool(refused)]), group).flatten().tolist()
    if same and refused and refusing.index(True) == rank_of(group):
        warnings.warn(f"ranks along {axis} are on one host and exchange through sockets: {refused}", stacklevel=2)
    return None if any(refusing) else found


def _refusal(neighbors: Neighbors, tokens: Tensor) -> str:
    """Why this rank cannot read from all others; empty if it can."""
    for position, expected in enumerate(tokens):
        seen = torch.zeros_like(expected)
        try:
            neighbors.read(position, neighbors._pages[position], seen)
        except (RuntimeError, AttributeError) as error:
            return str(error)
        if not torch.equal(seen, expected):
            return "their process numbers are of different namespaces"
    return ""


def _host() -> int:
    """Tells hosts apart; 0 where nothing does. Network namespaces count as hosts: what joins them is a link."""
    with suppress(OSError):
        identity = f"{_BOOT.read_text()} {_NETWORK.stat().st_ino}".encode()
        return int.from_bytes(hashlib.sha256(identity).digest()[:7], "little")
    return 0


def _read(pid: int, here: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> None:
    spans = [(_Span * len(side))(*(_Span(*span) for span in side)) for side in (here, there)]
    expected = sum(length for _, length in here)
    got = _LIBC.process_vm_readv(pid, spans[0], len(here), spans[1], len(there), 0)
    if got != expected:
        reason = os.strerror(ctypes.get_errno()) if got < 0 else f"{got} of {expected} bytes were there"
        raise RuntimeError(f"the memory of process {pid} cannot be read: {reason}")


_LIBC = ctypes.CDLL(None, use_errno=True)
with suppress(AttributeError):  # another system than Linux
    _LIBC.process_vm_readv.restype = ctypes.c_ssize_t
    _SIDE = (ctypes.c_void_p, ctypes.c_ulong)
    _LIBC.process_vm_readv.argtypes = [ctypes.c_int, *_SIDE, *_SIDE, ctypes.c_ulong]
