"""Names the rank that hangs, with its stack.

Each rank counts the phases it enters (`beat`) and publishes the count from a thread of its own. When no responsive rank
has entered a new phase for the time-out, the lowest responsive rank says who is behind, or does not answer at all, and
ends the run. A rank whose interpreter is stuck in native code cannot run that thread: faulthandler's own thread then
writes its stack to its log and ends it.
"""

import faulthandler
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure, published

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_COLLECTIVES = ("torch.distributed.", "gradwire.comm.")
PREPARING = "preparing data"  # tokenizing a large corpus takes as long as it takes: no stall
_PEER_PATIENCE = 3.0  # seconds that a rank has to notice by itself that another one failed


@dataclass(frozen=True)
class Progress:
    """What a rank publishes about itself.

    Attributes:
        sequence: Number of the publication: it grows as long as the process answers.
        beats: Phases entered so far.
        phase, update: The last one, and the update it belongs to.
        idle: Seconds since it was entered.
        stacks: Stacks of all threads once `idle` exceeds the time-out, else empty.
        waiting: Whether the main thread then sits in a collective, waiting for another rank.
        ended: Whether the rank left in good order.
    """

    sequence: int
    beats: int
    phase: str
    update: int
    idle: float
    stacks: str = ""
    waiting: bool = False
    ended: bool = False

    @property
    def where(self) -> str:
        """The phase in words."""
        return f"{self.phase} of update {self.update}, entered {self.idle:.0f} s ago"


class Watchdog:
    """Watches this rank and, together with the other ranks', the whole run.

    Args:
        store: A connection of its own (`store.clone()`): a blocking call elsewhere must not stop it.
        rank: This rank.
        world_size: Number of ranks.
        timeout: Seconds without any new phase on any responsive rank; None watches only for failures of other ranks.
        end: Called from the watchdog's thread with the failure that ends the run; does not return.
    """

    def __init__(
        self, store: "Store", rank: int, world_size: int, timeout: float | None, end: Callable[[Failure], None]
    ) -> None:
        self._store, self._rank, self._world_size = store, rank, world_size
        self._timeout, self._end = timeout, end
        self._interval = 1.0 if timeout is None else min(max(timeout / 20, 0.1), 1.0)
        self._beats, self._phase, self._update, self._since = 0, "start", 0, time.monotonic()
        self._sequence = 0
        self._lost_since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gradwire-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._arm()
        self._publish()
        self._thread.start()

    def beat(self, phase: str, update: int) -> None:
        """This rank enters a phase: cheap, call it as often as there is something to tell."""
        self._beats, self._phase, self._update, self._since = self._beats + 1, phase, update, time.monotonic()

    def dismiss(self) -> None:
        """This rank has failed and says so itself: judge nobody any more."""
        self._over.set()

    def stop(self) -> None:
        """This rank leaves in good order."""
        self._over.set()
        self._thread.join(timeout=5)
        faulthandler.cancel_dump_traceback_later()
        self._publish(ended=True)

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(self._interval):
            if (gap := time.monotonic() - last) > 5 * self._interval + 5:
                self._since += gap  # the process itself was suspended: that is no stall of its own
            last = time.monotonic()
            self._arm()
            try:
                self._look()
            except RuntimeError:  # the process that held the store is gone
                self._leave_after("the process that holds the run's store is gone")

    def _look(self) -> None:
        """One round: publish, notice failures of others, judge a stall."""
        mine = self._publish()
        self._heed_failure()
        if self._timeout is not None and mine.idle > self._timeout:
            self._judge()

    def _arm(self) -> None:
        if self._timeout is not None:
            faulthandler.dump_traceback_later(self._timeout + self._interval, exit=True, file=2)

    def _publish(self, *, ended: bool = False) -> Progress:
        self._sequence += 1
        idle = 0.0 if self._phase == PREPARING else time.monotonic() - self._since
        stalled = self._timeout is not None and idle > self._timeout
        progress = Progress(
            self._sequence,
            self._beats,
            self._phase,
            self._update,
            idle,
            _stacks() if stalled else "",
            stalled and _in_collective(),
            ended,
        )
        self._store.set(_key(self._rank), json.dumps(asdict(progress)))
        return progress

    def _heed_failure(self) -> None:
        """Another rank failed and this one sits in a collective that may never return: leave after a moment."""
        failure = published(self._store)
        if failure is None or failure.rank == self._rank:
            return
        self._leave_after(f"rank {failure.rank} failed")

    def _leave_after(self, reason: str) -> None:
        """End this rank unless it does so by itself within a moment."""
        self._lost_since = self._lost_since or time.monotonic()
        if time.monotonic() - self._lost_since > _PEER_PATIENCE:
            message = f"rank {self._rank} left because {reason}."
            self._end(Failure(self._rank, time.time(), "peer", int(ExitCode.PEER_LOST), message))

    def _judge(self) -> None:
        assert self._timeout is not None
        before = self._read()
        if self._over.wait(3 * self._interval):
            return
        self._publish()
        after = self._read()
        answering = {rank: p for rank, p in after.items() if rank not in before or p.sequence > before[rank].sequence}
        answering[self._rank] = after[self._rank]
        if self._rank != min(answering) or any(p.idle <= self._timeout for p in answering.values()):
            return
        self._end(verdict(self._rank, self._world_size, answering, after, self._timeout))

    def _read(self) -> Mapping[int, Progress]:
        keys = {rank: _key(rank) for rank in range(self._world_size)}
        present = {rank: key for rank, key in keys.items() if self._store.check([key])}
        return {rank: Progress(**json.loads(self._store.get(key))) for rank, key in present.items()}


def verdict(
    rank: int, world_size: int, answering: Mapping[int, Progress], known: Mapping[int, Progress], timeout: float
) -> Failure:
    """Who hangs: the ranks that do not answer, else those that have entered the fewest phases.

    Args:
        rank: The rank that judges.
        world_size: Number of ranks.
        answering: Progress of the ranks that still publish.
        known: The last progress of every rank that ever published.
        timeout: The watchdog's time-out in seconds.
    """
    mute = [each for each in range(world_size) if each not in answering]
    behind = mute or _behind(answering)
    lines = [f"No rank made progress for {timeout:g} s (launch.watchdog)."]
    lines += [_say(each, known.get(each), mute=each in mute, all_equal=len(behind) == world_size) for each in behind]
    others = [each for each in answering if each not in behind]
    if others:
        lines.append(f"waiting: rank {others[0]} is in {answering[others[0]].where}.")
    shown = behind if not mute else others[:1]
    stacks = [f"stack of rank {each}:\n{known[each].stacks}" for each in shown[:2] if each in known]
    return Failure(rank, time.time(), "stalled", int(ExitCode.FAILED), "\n".join(lines), "\n".join(stacks))


def _behind(answering: Mapping[int, Progress]) -> list[int]:
    """The ranks that have entered the fewest phases; among equals those that do not wait for another rank."""
    fewest = min(progress.beats for progress in answering.values())
    last = [rank for rank, progress in answering.items() if progress.beats == fewest]
    return [rank for rank in last if not answering[rank].waiting] or last


def _say(rank: int, progress: Progress | None, *, mute: bool, all_equal: bool) -> str:
    if progress is None:
        return f"rank {rank} hangs: it never reported since it started."
    if mute and progress.ended:
        return f"rank {rank} has already left; it was last in {progress.phase} of update {progress.update}."
    if mute:
        return (
            f"rank {rank} hangs: it does not respond at all (stopped, swapped out, or its machine is gone); "
            f"it was last in {progress.phase} of update {progress.update}."
        )
    reason = "as every other rank" if all_equal else "the others wait for it"
    return f"rank {rank} hangs in {progress.where} ({reason})."


def _key(rank: int) -> str:
    return f"progress/{rank}"


def _in_collective() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_COLLECTIVES):
            return True
        frame = frame.f_back
    return False


def _stacks() -> str:
    """The stacks of all threads but this one, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != threading.main_thread().ident)
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames
        if ident != threading.get_ident()
    )
