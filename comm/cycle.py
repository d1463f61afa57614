"""One reduction of all buckets: which gradients have come, what has been sent, and what is still to be waited for."""

from array import array
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.buckets import Bucket, Slot
from gradwire.comm.errors import CollectiveError
from gradwire.comm.group import await_release, named
from gradwire.comm.memory import Memory
from gradwire.comm.works import Work


class Cycle:
    """Sends each bucket once its gradients are complete, in the order of the buckets on every rank.

    The ranks also learn who has what. Where every rank has every gradient, the postscript of the last bucket says so.
    Otherwise, and without a postscript, an exchange behind the buckets counts who has each gradient and whose backward
    failed.

    Args:
        memory: All buckets, and room behind the last one for what the ranks tell each other.
        start: Begins to sum a bucket over the ranks.
        ranks: How many there are.
        rank: This one's number.
        control: The same ranks, for small tensors on the CPU.
        before_sending: Sees every bucket when its local gradients are complete.
        carry: Whole numbers to sum over the ranks as well.
    """

    def __init__(
        self,
        memory: Memory,
        start: Callable[[Bucket], Work | None],
        ranks: int,
        rank: int,
        control: dist.ProcessGroup | None,
        before_sending: Callable[[Bucket], None] | None,
        carry: Sequence[int] = (),
    ) -> None:
        self._buckets = memory.buckets
        self._start = start
        self._ranks = ranks
        self._rank = rank
        self._control = control
        self._before_sending = before_sending
        self._waiting_for = [len(bucket.slots) for bucket in memory.buckets]
        self._gradients = sum(self._waiting_for)
        self.present = array("q", [0] * (self._gradients + ranks)) + array("q", carry)
        self._carry = carry
        self._postscript = memory.postscript
        self._works: list[Work | None] = []
        self._everyone: Tensor | None = None  # who has which gradient, once it is sent
        self._presence: dist.Work | None = None
        self._held = False

    def hold(self) -> None:
        """Send nothing before `send`."""
        self._held = True

    @property
    def aborted(self) -> list[int]:
        """Ranks whose backward failed; all of them are known when the cycle is complete."""
        failed = self.present[self._gradients : self._gradients + self._ranks]
        return [rank for rank, count in enumerate(failed) if count]

    @property
    def carried(self) -> list[int]:
        """The sums of what was to be carried; known when the cycle is complete."""
        return self.present[self._gradients + self._ranks :].tolist()

    def arrived(self, slot: Slot) -> None:
        """The local gradient of `slot` lies in its bucket; send what that completes."""
        self.present[slot.index] = 1
        self._waiting_for[slot.bucket] -= 1
        if not self._waiting_for[slot.bucket] and slot.bucket == len(self._works) and not self._held:
            self._send_complete()

    def complete(self, take: Callable[[Slot], None]) -> None:
        """Send what is left, with zeros for the gradients that this rank does not have, and wait for everything.

        Args:
            take: Moves a slot's gradient into its bucket.

        Raises:
            CollectiveError: Names the bucket's parameters.
        """
        self.fill(take)
        self.send()
        self.wait()

    def fill(self, take: Callable[[Slot], None]) -> None:
        """Backward is over: in what was not sent yet there are zeros for the gradients that this rank does not have."""
        for bucket in self._buckets[len(self._works) :]:
            for slot in bucket.slots:
                if not self.present[slot.index]:
                    self._fill(slot, take)
            self._waiting_for[bucket.index] = 0

    def send(self) -> None:
        """Send what is left and has been filled."""
        self._send_complete()

    def abandon(self) -> None:
        """Take part in what the peers wait for, and tell them that this rank's gradients are worthless."""
        self._before_sending = None
        if len(self._works) < len(self._buckets) or not self._buckets:
            self.present[self._gradients + self._rank] = 1
        self._waiting_for = [0] * len(self._buckets)
        self._send_complete()
        self.wait()

    def _fill(self, slot: Slot, take: Callable[[Slot], None]) -> None:
        if slot.parameter.grad is None:
            slot.view.zero_()
        else:
            take(slot)
            self.present[slot.index] = 1

    def _send_complete(self) -> None:
        while len(self._works) < len(self._buckets) and not self._waiting_for[len(self._works)]:
            bucket = self._buckets[len(self._works)]
            if self._before_sending is not None:
                self._before_sending(bucket)
            if self._postscript is not None and len(self._works) == len(self._buckets) - 1:
                self._postscript.write(0 not in self.present[: self._gradients] and not self.aborted, self._carry)
            self._works.append(self._start(bucket))
        if len(self._works) == len(self._buckets) and self._postscript is None:
            self._start_exchange()

    def _start_exchange(self) -> None:
        if self._everyone is not None or self._ranks == 1:
            return
        self._everyone = torch.frombuffer(self.present, dtype=torch.int64)
        with named("exchanging which gradients exist", self._control):
            self._presence = dist.all_reduce(self._everyone, dist.ReduceOp.SUM, group=self._control, async_op=True)

    def wait(self) -> None:
        """Wait for everything that was sent, and for what the ranks tell each other.

        Raises:
            CollectiveError: Names the bucket's parameters.
        """
        for bucket, work in zip(self._buckets, self._works, strict=True):
            assert work is not None
            try:
                work.wait()
            except CollectiveError as error:
                where = f"bucket {bucket.index + 1} of {len(self._buckets)}, {bucket}"
                raise CollectiveError(f"the gradients of {where}: {error}") from error
        if self._postscript is not None:
            sums = self._postscript.read(len(self._carry))
            if sums is None:  # on every rank: the postscripts add up to the same
                self._start_exchange()
            else:
                everyone = [self._ranks] * self._gradients + [0] * self._ranks
                self.present = array("q", everyone + sums)
        if self._presence is not None and self._everyone is not None:
            with named("exchanging which gradients exist", self._control):
                self._presence.wait()
            self._presence = None
            await_release(self._everyone)
