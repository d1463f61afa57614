"""Last words: a rank that gives up tells the others why before its connections close, so that their errors say it."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

_TAG = 1 << 30  # no message has it
_SIZE = 512  # bytes: UTF-8, padded with zeros
_PATIENCE = timedelta(milliseconds=200)
_AT_ONCE = timedelta(milliseconds=1)


class Farewell:
    """Between the ranks of a gloo group that exchange point-to-point messages.

    Every rank holds a receive open to each other one, for words that normally never come.

    Args:
        group: The ranks.
        position: This rank's.
        size: Their number.
    """

    def __init__(self, group: dist.ProcessGroup, position: int, size: int) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._said = False
        peers = [peer for peer in range(size) if peer != position]
        self._heard = {peer: torch.zeros(_SIZE, dtype=torch.uint8) for peer in peers}
        self._works = [group.recv([room], peer, _TAG) for peer, room in self._heard.items()]

    def heard(self, peer: int) -> str:
        """What `peer` said; empty where it said nothing."""
        return bytes(self._heard[peer].tolist()).rstrip(b"\0").decode(errors="replace")

    def say(self, words: str) -> None:
        """Send `words` to everybody and close all connections of the group: whoever waits on them, here too, fails."""
        with self._lock:
            if self._said:
                return
            self._said = True
        text = words.encode()[:_SIZE]
        message = torch.zeros(_SIZE, dtype=torch.uint8)
        message[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        sends = []
        for peer in self._heard:
            try:
                sends.append(self._group.send([message], peer, _TAG))
            except RuntimeError:  # this one is gone
                continue
        for send in sends:
            try:
                send.wait(_PATIENCE)
            except RuntimeError:  # it is gone, or does not read
                continue
        self._close()

    def _close(self) -> None:
        """Gloo's own abort leaves those waiting who wait; a receive that comes too late closes every connection."""
        for peer in self._heard:
            try:
                self._group.recv([torch.zeros(1)], peer, _TAG + 1).wait(_AT_ONCE)
            except RuntimeError:
                continue
