"""What a run keeps of itself: when snapshots are saved, and the journal that goes on from the last durable one."""

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from gradwire.checkpoint import (
    Checkpointer,
    CheckpointError,
    CheckpointWriteError,
    Commit,
    Saving,
    Standing,
    WriterFenced,
)
from gradwire.schedulers import Clock
from gradwire.trainer.decisions import RECOVERED
from gradwire.trainer.journaling import Journaling
from gradwire.trainer.triggers import Every, WallClock
from gradwire.trainer.update import Outcome

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")
Reason = Literal["interval", "end", "preempted"]


class Keeping:
    """Saves a trainer's state, and journals what each update consumed.

    Args:
        trainer: Whose.
        checkpointer: Where to.
    """

    def __init__(self, trainer: "Trainer", checkpointer: Checkpointer) -> None:
        settings = trainer.settings
        self._trainer = trainer
        self._checkpointer = checkpointer
        wall = settings.save_every is not None and settings.save_every.is_wall_clock
        self._every = Every(None if wall else settings.save_every, trainer.plan)
        self._clock = WallClock(settings.save_every.seconds if wall and settings.save_every else None)
        self._base: Commit | None = None  # what was restored, where the journal may go on from
        self.saving: Saving | None = None  # the snapshot that is on its way
        self.durable_update = -1  # of the newest snapshot that is durable
        self._saved_update = -1
        self._took = 0.0  # seconds of the last snapshot
        self._dues = 0
        self.journal: Journaling | None = None
        if settings.journal is not None:
            self.journal = Journaling(
                trainer, checkpointer, settings.journal, settings.journal_interval, settings.recover_within
            )

    def restored(self, update: int, *, complete: bool) -> None:
        """The trainer is at a saved update; `complete` says whether that snapshot lacks nothing."""
        self._saved_update = self.durable_update = update if complete else -1

    def goes_on_from(self, base: Commit | None) -> None:
        """What was restored, where the journal can go on from that; else it begins with a snapshot."""
        self._base = base

    def begin(self) -> None:
        """Take the store over, and journal from here on. A collective."""
        self._checkpointer.take_over(self._trainer.state())
        if self.journal is None:
            return
        reason = self._why_not_journalled()
        if reason is not None:
            log.warning("updates are not journalled: %s. Snapshots alone bring the run back, in the same bits", reason)
            self.journal = None
            return
        base, self._base = self._base, None
        self.journal.begin(self._save_base() if base is None else base, self._trainer.clock.updates)

    def _why_not_journalled(self) -> str | None:
        strategy = self._trainer.strategy
        if self._trainer.settings.recovery == "exact" and strategy.carries():
            return "codecs carry over what they lost, which no gradient tells (checkpoint.recovery=fast does without)"
        return strategy.record()

    def _save_base(self) -> Commit:
        """A snapshot for the journal to go on from."""
        trainer = self._trainer
        base = self._checkpointer.save(trainer.state(), self._position(), {}, reason="interval")
        self.durable_update = self._saved_update = trainer.clock.updates
        self._tell()
        return base

    @property
    def due(self) -> bool:
        """Whether the wall clock or the journal's length asks for a snapshot."""
        return self._clock.due() or (self.journal is not None and self.journal.due)

    def wait(self, update: int) -> None:
        """Before the gradients of the next update are reduced; see Journaling.wait."""
        if self.journal is not None:
            self.journal.wait(update)

    def after(self, before: Clock, outcome: Outcome) -> None:
        """An update was done: journal it, and save if that is due."""
        if self.journal is not None:
            self.journal.append(outcome)
        self._note()
        if self._every.due(before, self._trainer.clock) or outcome.due:
            self.save("interval")

    def save(self, reason: Reason) -> None:
        """Save a snapshot of the present state; see Trainer.save."""
        trainer = self._trainer
        if self._is_saved(reason) or (reason == "interval" and self._is_put_off(self._checkpointer.standing)):
            return
        trainer.before_saving()
        arguments = (trainer.state(), self._position(), trainer.records.numbers_of(trainer.clock.updates))
        if reason == "interval":
            self.saving = self._checkpointer.start(*arguments, reason=reason)
            self._note()
        else:
            self._checkpointer.save(*arguments, reason=reason)
            self.durable_update = trainer.clock.updates
        self._saved_update = trainer.clock.updates
        self._clock.reset()
        self._tell_journal()
        self._tell()

    def finish(self, status: Literal["done", "preempted"]) -> None:
        """The run ends: everything becomes durable."""
        if self.journal is not None:
            self.journal.close()
        self.save("end" if status == "done" else "preempted")
        self._checkpointer.free() if status == "done" else self._checkpointer.close()

    def give_up(self) -> None:
        """The run failed: what was journalled becomes durable if it can."""
        if self.journal is not None:
            with suppress(CheckpointError):
                self.journal.close()

    def _tell_journal(self) -> None:
        if self.journal is not None:
            self.journal.saving(self._trainer.clock.updates)
        if self.journal is not None and not self._checkpointer.standing.journal:
            log.warning("updates are not journalled any more: the store is full")
            self.journal.abandon()
            self.journal = None

    def _tell(self) -> None:
        for callback in self._trainer.callbacks.values():
            callback.on_save(self._trainer)

    def _note(self) -> None:
        """Where a snapshot has become durable, the journal goes on from it."""
        if self.saving is not None and self.saving.done:
            saving, self.saving = self.saving, None
            self._took = self._took if saving.failure else saving.seconds or 0.0
        durable = self._checkpointer.durable
        if durable is None or (self.saving is not None and durable.update == self._saved_update):
            return  # once that one is done
        if durable.update > self.durable_update:
            self.durable_update = durable.update
            if self.journal is not None:
                self.journal.rebase(durable, self._took)

    def _position(self) -> dict[str, int]:
        """What a commit says of where the run is: also where it went on with other bits than it had."""
        recovered = self._trainer.decisions.latest(RECOVERED)
        return self._trainer.clock.to_dict() | ({} if recovered is None else {RECOVERED: recovered.update})

    def _is_saved(self, reason: Reason) -> bool:
        """Whether this update's snapshot was begun; before a run ends, whether it became durable."""
        if self._saved_update != self._trainer.clock.updates:
            return False
        if reason == "interval" or self.saving is None:
            return True
        try:
            self.saving.wait()
        except WriterFenced:
            raise
        except CheckpointWriteError:
            return False
        finally:
            self._note()
        return True

    def _is_put_off(self, standing: Standing) -> bool:
        """While the store is full, only every second snapshot is tried."""
        self._dues += 1
        return self._dues % standing.widening != 0
