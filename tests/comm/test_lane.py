"""Segments on their way through stages: what is expected and started when."""

import threading
from dataclasses import dataclass, field

import torch

from gradwire.comm.lane import Lane
from gradwire.comm.layout import Step, portions
from gradwire.comm.segment import Job, Segment
from gradwire.comm.telemetry import Meter


class Quiet:
    """A line on which nothing is sent."""

    def withdraw(self) -> None:
        """Nothing."""

    def hang_up(self, error: BaseException) -> None:
        """Nothing."""


@dataclass
class Noted:
    """A stage that notes what is asked of it, and fails in `broken`."""

    name: str
    notes: list[str]
    broken: str = ""
    line: Quiet = field(default_factory=Quiet)
    rounds: int = 1
    meter: Meter = field(default_factory=lambda: Meter("ring"))

    def expect(self, segment: Segment, tag: int) -> None:
        self._note("expect")

    def start(self, segment: Segment, tag: int) -> None:
        self._note("start")

    def finish(self, segment: Segment, tag: int) -> None:
        self._note("finish")

    def _note(self, what: str) -> None:
        self.notes.append(f"{what} {self.name}")
        if what == self.broken:
            raise RuntimeError(f"{what} broke")


def _run(stages: list[Noted]) -> Job:
    tensor = torch.zeros(4)
    job = Job(1)
    segment = Segment(tensor, portions(0, 4, [Step(2, 0)], 1), 0, 0, 1, job, {}, False)
    lane = Lane(stages, range(len(stages)), len(stages), tensor.device)  # type: ignore[arg-type]
    lane.submit([segment])
    job._over.wait(240)
    lane.close()
    return job


def test_room_is_made_for_all_stages_before_a_segment_starts_in_the_first() -> None:
    notes: list[str] = []
    assert _run([Noted("one", notes), Noted("two", notes)]).error is None
    assert notes == ["expect one", "expect two", "start one", "finish one", "start two", "finish two"]


def test_a_segment_for_which_no_room_can_be_made_fails_and_its_lane_ends() -> None:
    notes: list[str] = []
    job = _run([Noted("one", notes), Noted("two", notes, broken="expect")])
    assert str(job.error) == "expect broke"
    assert notes == ["expect one", "expect two"]
    assert not [thread for thread in threading.enumerate() if thread.name in ("gradwire one", "gradwire two")]
