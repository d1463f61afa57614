"""A callback for `gradwire train`: stretches of updates with and without a journal take turns in one run.

Between two stretches a snapshot is saved, from which the next one is journalled; it is not timed.
"""

import json
import time
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist

from gradwire.checkpoint import Commit
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.journaling import Journaling
from gradwire.trainer.trainer import Trainer
from gradwire.trainer.update import Outcome

Mode = Literal["off", "interval", "update"]
MODES: tuple[Mode, ...] = ("off", "interval", "update")


class Alternation(Callback):
    """Replaces a run's journal.

    Args:
        output: JSON file for what was measured.
        stretch: Updates of a stretch that are timed.
        interval: Seconds between two writes of the journal with durability `interval`.
    """

    def __init__(self, output: str, stretch: int, interval: float) -> None:
        self._output = Path(output)
        self._stretch = stretch
        self._interval = interval
        self._journal: _Alternating | None = None

    def on_start(self, trainer: Trainer) -> None:
        keeping = trainer.keeping
        assert keeping is not None and keeping.journal is not None
        self._journal = keeping.journal = _Alternating(
            trainer, keeping.journal._checkpointer, self._stretch, self._interval
        )

    def on_end(self, trainer: Trainer, status: str) -> None:
        if trainer.strategy.rank == 0 and self._journal is not None:
            self._output.write_text(json.dumps(self._journal.found))


class _Alternating(Journaling):
    def __init__(self, trainer: Trainer, checkpointer: Any, stretch: int, interval: float) -> None:
        super().__init__(trainer, checkpointer, "update", interval, None)
        self._stretch = stretch
        self._turn = self._done = 0
        self._entered = 0.0, 0.0
        self._mode: Mode = "off"
        self._folder = Path(trainer.run.directory or ".") / "checkpoints"
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        self.found: dict[str, Any] = {"parameters": parameters, "stretches": [], "bases": [], "applying": []}

    def begin(self, base: Commit, update: int) -> None:
        """The first stretch has no journal."""
        self._base = base.update
        self._trainer.strategy.reducer.record(False)  # type: ignore[attr-defined]
        self._current: dict[str, Any] = _stretch("off")

    def append(self, outcome: Outcome) -> None:
        now, used = time.perf_counter(), time.process_time()
        if self._done > 0:
            self._current["seconds"].append(now - self._entered[0])
            self._current["processor"].append(used - self._entered[1])
        self._entered = now, used
        if self._done == self._stretch:
            self._switch()
            return
        self._done += 1
        if self._mode != "off":
            super().append(outcome)
            self._current["blocked"].append(time.perf_counter() - now)
            self.found["applying"].append(self._trainer.updater.applying)

    def wait(self, update: int) -> None:
        if self._mode == "update":
            started = time.perf_counter()
            super().wait(update)
            self._current["blocked"].append(time.perf_counter() - started)

    def _switch(self) -> None:
        """End a stretch; the update just done belongs to none."""
        journalled = self._mode != "off"
        super().close()
        dist.barrier()
        if journalled and dist.get_rank() == 0:
            self._current["bytes"] = self._written("journal") / self._stretch
        self.found["stretches"].append(self._current)
        self._turn += 1
        turn, place = divmod(self._turn, len(MODES))
        self._mode = (MODES if turn % 2 == 0 else MODES[::-1])[place]
        self._current = _stretch(self._mode)
        self._trainer.strategy.reducer.record(self._mode != "off")  # type: ignore[attr-defined]
        before = self._names()
        dist.barrier()
        started = time.perf_counter()
        base = self._checkpointer.save(self._trainer.state(), self._trainer.clock.to_dict(), {}, reason="interval")
        seconds = time.perf_counter() - started
        dist.barrier()
        written = sum(path.stat().st_size for path in self._names() - before if path.exists())
        self.found["bases"].append({"bytes": written, "seconds": seconds})
        if self._mode != "off":
            self._durability = self._mode
            super().begin(base, self._trainer.clock.updates)
        self._done = 0

    def _names(self) -> set[Path]:
        return {path for kind in ("packs", "parts") for path in (self._folder / kind).glob("*")}

    def _written(self, kind: str) -> int:
        """Bytes of the newest base's journal, of all ranks."""
        newest = max((self._folder / kind).iterdir(), key=lambda path: int(path.name))
        return sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())


def _stretch(mode: Mode) -> dict[str, Any]:
    """Seconds of each update, of the processor too, and those that training was held up."""
    return {"mode": mode, "seconds": [], "processor": [], "blocked": []}
