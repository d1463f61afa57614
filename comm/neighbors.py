"""Ranks on one host read from each other's memory what they would otherwise send through sockets.

The system call is process_vm_readv (Linux). It needs no memory that is set apart for it and leaves nothing behind.
"""

import ctypes
import hashlib
import os
import secrets
import socket
import struct
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.channel import Channel
from gradwire.comm.group import gather_rows, rank_of

_MOST = 1 << 30  # bytes that one call reads; Linux ends at 2 GiB
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_TOKENS, _FLAG = 2, 8 * 2  # numbers that prove whose memory it is, and where, behind them, a rank says that it gives up
_CREDENTIALS = struct.Struct("3i")  # struct ucred


class Neighbors:
    """Ranks that can read each other's memory, by their positions along an axis.

    What a rank offers may be changed once the receipt has come, or after `withdraw`.

    Args:
        pids: Their processes.
        pages: Where each one's page lies in its memory: some numbers, and behind them whether it withdrew.
        own: This rank's page.
        channels: To the other ones.
    """

    def __init__(
        self, pids: Sequence[int], pages: Sequence[int], own: Tensor, channels: Mapping[int, Channel] | None = None
    ) -> None:
        self._pids = tuple(pids)
        self._pages = tuple(pages)
        self._own = own
        self._channels = dict(channels or {})
        weakref.finalize(self, _close, list(self._channels.values())).atexit = False

    def offer(self, position: int, tag: int, message: Tensor) -> None:
        """Tell the rank at `position` where a message lies, which is contiguous."""
        self._tell(position, 2 * tag, (message.data_ptr(), message.nbytes))

    def receive(self, position: int, tag: int, out: Tensor, seconds: float) -> None:
        """Wait for the offer of a message and read it.

        Raises:
            RuntimeError: The other rank does not offer it in time, or another length; it died, or withdrew.
        """
        address, nbytes = self._channels[position].hear(2 * tag, seconds)
        if nbytes != out.nbytes:
            raise RuntimeError(f"it sends {nbytes} bytes where {out.nbytes} are expected")
        self.read(position, address, out)
        self._tell(position, 2 * tag + 1, (0, 0))

    def receipt(self, position: int, tag: int, seconds: float) -> None:
        """Wait until the rank at `position` has read what it was offered.

        Raises:
            RuntimeError: It does not in time, or is gone.
        """
        self._channels[position].hear(2 * tag + 1, seconds)

    def withdraw(self) -> None:
        """This rank gives up: whoever still reads from its memory fails, instead of taking what is there by then."""
        self._own[-1] = 1

    def hang_up(self) -> None:
        """Whoever waits for this rank, or here, fails."""
        for channel in self._channels.values():
            channel.hang_up()

    def close(self) -> None:
        """Let go of the connections; nothing is under way."""
        _close(self._channels.values())

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

    def _tell(self, position: int, tag: int, numbers: tuple[int, int]) -> None:
        try:
            self._channels[position].tell(tag, numbers)
        except OSError as error:
            raise RuntimeError(str(error)) from error


def find(group: dist.ProcessGroup, axis: str, seconds: float) -> Neighbors | None:
    """The ranks of `group` if each of them can read the memory of all others, found out by trying. A collective.

    Args:
        group: Ranks with CPU tensors.
        axis: What joins them, for a warning where they are on one host and cannot.
        seconds: How long a peer may keep this rank waiting.
    """
    own = torch.tensor([*(secrets.randbits(62) for _ in range(_TOKENS)), 0])
    tokens, here = own[:_TOKENS].tolist(), _host()
    with _listening(tokens) as listener:
        row = torch.tensor([here, os.getpid(), own.data_ptr(), *tokens])
        rows = gather_rows(row, group)
        pids, pages = rows[:, 1].tolist(), rows[:, 2].tolist()
        if not here or any(rows[:, 0] != here):
            return None
        refused = _refusal(Neighbors(pids, pages, own), rows[:, 3:])
        if _agree(not refused, group, axis, refused):
            return None
        channels: dict[int, Channel] = {}
        try:
            channels = _connected(listener, rank_of(group), pids, rows[:, 3:].tolist(), seconds)
        except OSError as error:
            refused = str(error)
    if _agree(not refused, group, axis, refused):
        return None
    return Neighbors(pids, pages, own, channels)


def _agree(able: bool, group: dist.ProcessGroup, axis: str, reason: str) -> bool:
    """Whether any rank is not able; the first of them says why."""
    refusing = (~gather_rows(torch.tensor([able]), group).flatten()).tolist()
    if not able and refusing.index(True) == rank_of(group):
        warnings.warn(f"ranks along {axis} are on one host and exchange through sockets: {reason}", stacklevel=3)
    return any(refusing)


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


def _listening(tokens: Sequence[int]) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with suppress(OSError):  # another system than Linux; found out by connecting
        listener.bind(_address(tokens))
        listener.listen(socket.SOMAXCONN)
    return listener


def _address(tokens: Sequence[int]) -> bytes:
    """In the abstract namespace: no file."""
    return b"\0gradwire-" + "-".join(map(str, tokens)).encode()


def _connected(
    listener: socket.socket, mine: int, pids: Sequence[int], tokens: Sequence[Sequence[int]], seconds: float
) -> dict[int, Channel]:
    """To every other position: this rank calls those before it and is called by those behind it."""
    channels: dict[int, Channel] = {}
    for position in range(mine):
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        caller.connect(_address(tokens[position]))
        channels[position] = Channel(caller, seconds)
    listener.settimeout(seconds)
    while len(channels) < len(pids) - 1:
        called, _ = listener.accept()
        credentials = called.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid = _CREDENTIALS.unpack(credentials)[0]
        if pid in pids[mine + 1 :]:
            channels[list(pids).index(pid)] = Channel(called, seconds)
        else:
            called.close()
    return channels


def _close(channels: Iterable[Channel]) -> None:
    for channel in channels:
        channel.close()


def _read(pid: int, here: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> None:
    spans = [(_Span * len(side))(*(_Span(*span) for span in side)) for side in (here, there)]
    expected = sum(length for _, length in here)
    got = _LIBC.process_vm_readv(pid, spans[0], len(here), spans[1], len(there), 0)
    if got != expected:
        reason = os.strerror(ctypes.get_errno()) if got < 0 else f"{got} of {expected} bytes were there"
        raise RuntimeError(f"the memory of process {pid} cannot be read: {reason}")


class _Span(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_LIBC = ctypes.CDLL(None, use_errno=True)
with suppress(AttributeError):  # another system than Linux
    _LIBC.process_vm_readv.restype = ctypes.c_ssize_t
    _SIDE = (ctypes.c_void_p, ctypes.c_ulong)
    _LIBC.process_vm_readv.argtypes = [ctypes.c_int, *_SIDE, *_SIDE, ctypes.c_ulong]
