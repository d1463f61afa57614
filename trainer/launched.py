"""What a trainer and the controllers that started it tell each other."""

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradwire.checkpoint import Checkpointer, WriterFenced
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.launch.elastic import Change

if TYPE_CHECKING:
    from gradwire.trainer.launch.context import WorkerContext
    from gradwire.trainer.trainer import Trainer
    from gradwire.trainer.update import Outcome

log = logging.getLogger("gradwire")


class Launched(Callback):
    """Tells the launcher of each snapshot; reports what a change of hosts took once training goes on.

    Args:
        saved: To be called when there is a snapshot to restart from.
        change: Why the workers were started again, or None.
    """

    def __init__(self, saved: Callable[[], None], change: Change | None) -> None:
        self._saved, self._change = saved, change

    def on_save(self, trainer: "Trainer") -> None:
        self._saved()

    def on_update(self, trainer: "Trainer", outcome: "Outcome") -> None:
        if self._change is None:
            return
        change, self._change = self._change, None
        seconds = time.time() - change.since
        log.info(
            "%s Hosts: %d before, %d now. First new update, %d, after %.1f s",
            change.reason,
            change.before,
            change.hosts,
            trainer.clock.updates,
            seconds,
        )
        trainer.note({"restart/seconds": seconds, "hosts": change.hosts, "world_size": trainer.strategy.world_size})


def writer_of(launch: str | None) -> str | None:
    """How this process names itself in the store: so that another attempt of its launch knows it; None as ever."""
    return None if launch is None else f"{socket.gethostname()}:{os.getpid()} (launch {launch})"


def check_store_is_ours(checkpointer: Checkpointer, context: "WorkerContext") -> None:
    """Stop where hosts that were cut off, or held up, start again and another launch has taken their run over.

    Raises:
        WriterFenced: on rank 0; the other ranks hear of it.
    """
    if context.launch is None or context.rank > 0:
        return
    writers = checkpointer.writers()
    ours = [f"(launch {context.launch})" in writer for writer in writers]
    if any(ours) and not ours[-1]:
        raise WriterFenced(
            f"Another launch, {writers[-1]!r}, has taken this run over since these hosts trained last: they stop here"
        )
