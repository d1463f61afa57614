"""Numbers between two processes on one host, which wake who waits for them at once."""

import socket
import struct
import threading
import time
from collections import defaultdict, deque

Numbers = tuple[int, int]

_PACKET = struct.Struct("qqq")


class Channel:
    """One end of a connection, for any number of threads.

    Whoever waits first receives for all others.

    Args:
        connection: Keeps the borders of messages (SOCK_SEQPACKET).
        seconds: How long the other end may leave some two hundred messages unread.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._sender = connection
        self._sender.settimeout(seconds)
        self._receiver = connection.dup()  # each has a time-out of its own
        self._changed = threading.Condition()
        self._receiving = False
        self._closed = ""
        self._heard: dict[int, deque[Numbers]] = defaultdict(deque)

    def tell(self, tag: int, numbers: Numbers) -> None:
        """Send two numbers; the other end finds them under `tag`, in order.

        Raises:
            OSError: The other end is closed, or does not read.
        """
        self._sender.send(_PACKET.pack(tag, *numbers))

    def hear(self, tag: int, seconds: float) -> Numbers:
        """The next numbers under `tag`.

        Raises:
            RuntimeError: They do not come in time, or the other end is closed.
        """
        end = time.monotonic() + seconds
        with self._changed:
            while not self._heard[tag]:
                self._wait(end - time.monotonic())
            found = self._heard[tag].popleft()
            if not self._heard[tag]:
                del self._heard[tag]
            return found

    def hang_up(self) -> None:
        """Whoever waits at this end or the other fails."""
        for end in (self._sender, self._receiver):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end is gone, or this one closed
                continue

    def close(self) -> None:
        """Let go of the connection. Nobody waits."""
        self._sender.close()
        self._receiver.close()

    def _wait(self, left: float) -> None:
        """Until something has come, for whomever."""
        if left <= 0:
            raise RuntimeError("timed out")
        if self._receiving:
            self._changed.wait(left)
            return
        if self._closed:
            raise RuntimeError(self._closed)
        self._receiving = True
        self._changed.release()
        packet, reason = b"", "the connection was closed"
        try:
            self._receiver.settimeout(left)
            packet = self._receiver.recv(_PACKET.size)
        except TimeoutError:
            reason = ""
        except OSError as error:
            reason = str(error)
        finally:
            self._changed.acquire()
            self._receiving = False
            self._changed.notify_all()
        if packet:
            tag, *numbers = _PACKET.unpack(packet)
            self._heard[tag].append((numbers[0], numbers[1]))
        elif reason:
            self._closed = reason
