"""Segments flowing through the stages of an all-reduce, so that the stages work at the same time on different ones."""

import queue
import threading
from collections.abc import Sequence

import torch

from gradwire.comm.errors import CommError
from gradwire.comm.segment import Scratch, Segment
from gradwire.comm.stages import Stage

_PATIENCE = 10.0  # seconds that peers have when Python exits

_Inbox = queue.SimpleQueue[Segment | None]


class Lane:
    """One order of the axes: a chain of stages, each with a thread (CPU) or a stream (CUDA) of its own.

    The thread of a stage waits for peers, in the order of the segments; what it finishes it starts in the next stage at
    once, which never waits. So no rank can block another for anything but its own lateness.

    Args:
        stages: Reduce-scatters, then as many all-gathers; between them an all-reduce, where an axis has one.
        offsets: Where the message tags of each stage begin, out of `tags`.
        tags: Message tags that a segment takes.
        device: Of the tensors.
    """

    def __init__(self, stages: Sequence[Stage], offsets: Sequence[int], tags: int, device: torch.device) -> None:
        self.stages = tuple(stages)
        self._offsets = tuple(offsets)
        self._tags = tags
        self._device = device
        self._error: BaseException | None = None
        self._free: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
        for _ in range(2 * len(self.stages) + 2):
            self._free.put(Scratch())
        self._inboxes: list[_Inbox] = []
        self._threads: list[threading.Thread] = []
        self._streams: list[torch.cuda.Stream] = []

    def submit(self, segments: Sequence[Segment]) -> None:
        """Send the segments through the stages, behind those submitted before."""
        if self._device.type == "cuda":
            for segment in segments:
                self._enqueue(segment)
            return
        if not self._inboxes:
            self._start_threads()
        for segment in segments:
            self._inboxes[0].put(segment)

    def close(self) -> None:
        """End the threads when they have nothing left to do; what they still wait for as Python exits breaks off."""
        if not self._inboxes:
            return
        self._inboxes[0].put(None)
        exiting = not threading.main_thread().is_alive()
        for thread in self._threads:
            thread.join(_PATIENCE if exiting else None)
            if thread.is_alive():
                self._hang_up(CommError("Python exits, and a reduction is still under way"))
                thread.join(_PATIENCE)

    def _start_threads(self) -> None:
        self._inboxes = [queue.SimpleQueue() for _ in range(len(self.stages) + 1)]
        self._threads = [threading.Thread(target=self._admit, name="gradwire admission", daemon=True)]
        for place, stage in enumerate(self.stages):
            name = f"gradwire {stage.name}"
            self._threads.append(threading.Thread(target=self._serve, args=(place,), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def _admit(self) -> None:
        while (segment := self._inboxes[0].get()) is not None:
            segment.scratch = self._free.get()
            self._expect(segment)
        self._inboxes[1].put(None)

    def _expect(self, segment: Segment) -> None:
        try:
            self._raise_if_broken()
            for place, stage in enumerate(self.stages):
                stage.expect(segment, self._tag(segment, place))
        except BaseException as error:
            self._fail(segment, error)
            return
        self._hand_on(segment, 0)

    def _serve(self, place: int) -> None:
        while (segment := self._inboxes[place + 1].get()) is not None:
            try:
                self._raise_if_broken()
                self._finish(segment, place)
            except BaseException as error:
                self._fail(segment, error)
                continue
            self._hand_on(segment, place + 1)
        if place + 1 < len(self.stages):
            self._inboxes[place + 2].put(None)

    def _hand_on(self, segment: Segment, place: int) -> None:
        """Start the segment in the stage at `place`; behind the last one it is done."""
        try:
            self._raise_if_broken()
            if place < len(self.stages):
                self._start(segment, place)
                self._inboxes[place + 1].put(segment)
                return
            segment.sent()
        except BaseException as error:
            self._fail(segment, error)
            return
        self._free.put(segment.scratch)
        segment.job.segment_done()

    def _start(self, segment: Segment, place: int) -> None:
        self.stages[place].start(segment, self._tag(segment, place))

    def _finish(self, segment: Segment, place: int) -> None:
        with torch.no_grad():
            self.stages[place].finish(segment, self._tag(segment, place))
            if place + 1 == (len(self.stages) + 1) // 2 and segment.divisor != 1:  # the last sum
                segment.elements(*segment.portions[-1].own).div_(segment.divisor)
            if place + 1 == len(self.stages):
                segment.keep_elements()

    def _tag(self, segment: Segment, place: int) -> int:
        return segment.sequence * self._tags + self._offsets[place]

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, segment: Segment, error: BaseException) -> None:
        """After a broken exchange nobody knows what the peers have: everything in the lane fails."""
        self._error = self._error or error
        self._free.put(segment.scratch)
        for stage in self.stages:
            stage.line.withdraw()  # before the tensor is given back, and changed
        segment.job.fail(error)
        self._hang_up(error)

    def _hang_up(self, error: BaseException) -> None:
        for stage in self.stages:
            stage.line.hang_up(error)

    def _enqueue(self, segment: Segment) -> None:
        """On CUDA nothing waits here: every stage's stream waits for the one before."""
        if not self._streams:
            self._streams = [torch.cuda.Stream(self._device) for _ in self.stages]  # type: ignore[no-untyped-call]
        segment.scratch = self._free.get()
        before = [torch.cuda.current_stream(self._device).record_event(), segment.scratch.free]
        for place, stream in enumerate(self._streams):
            with torch.cuda.stream(stream):
                for event in filter(None, before):
                    stream.wait_event(event)
                self.stages[place].expect(segment, self._tag(segment, place))
                self._start(segment, place)
                self._finish(segment, place)
                segment.sent()
                before = [stream.record_event()]
        segment.scratch.free = before[0]
        self._free.put(segment.scratch)
        segment.job.segment_done(before[0])
