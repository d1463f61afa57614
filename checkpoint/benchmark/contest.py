"""Contenders take turns at saving and restoring the same state, which trains on between the rounds."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.checkpoint.benchmark import page_cache
from gradwire.checkpoint.benchmark.contenders import OURS, Contender, Ours, make
from gradwire.checkpoint.benchmark.places import Place
from gradwire.checkpoint.benchmark.recovering import Recovered, journal, recover
from gradwire.checkpoint.benchmark.training_state import TrainingState


@dataclass
class Measured:
    """What one contender did, by round; seconds are the slowest rank's.

    Attributes:
        stall: Seconds until training might go on.
        durable: Seconds until the state was durable.
        written: Bytes of the files that were new then.
        warm: Seconds that restoring took, with the disk's cache as it was.
        cold: The same without the cache; empty where it could not be dropped.
        plain: Seconds in which reading the snapshot's files, and nothing else, gives as many bytes as the state has,
            without the cache; ours only.
        wrong: What came back otherwise than it was saved, a line each.
    """

    stall: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Contest:
    """Contenders over the ranks of the default group. All its calls are collectives.

    Args:
        place: Where all of them write, an empty place.
        names: Of the contenders.
        state: What they save.
        cold: Whether to restore without the disk's cache too; see `page_cache.can_drop`.
        pulse: Called with the name of each step before it.

    Attributes:
        unavailable: Why a contender cannot take part, by its name.
        measured: By contender.
        recovered: What recovering from a snapshot and a journal took, by round.
    """

    def __init__(
        self,
        place: Place,
        names: Sequence[str],
        state: TrainingState,
        cold: bool,
        pulse: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._state = state
        self._cold = cold
        self._pulse = pulse
        self._contenders: dict[str, Contender] = {}
        self.unavailable: dict[str, str] = {}
        self.recovered: list[Recovered] = []
        for number, name in enumerate(names):
            try:
                self._contenders[name] = make(name, place.below(f"contender-{number}"))
            except ImportError as error:
                self.unavailable[name] = str(error)
        self.measured = {name: Measured() for name in self._contenders}
        self._saved: dict[str, int] = {}

    def measure(self, rounds: int, updates: int) -> None:
        """Measure; the first round only sets things up.

        Args:
            rounds: How many count.
            updates: Updates between two rounds, which are journalled and recovered.
        """
        for turn in range(rounds + 1):
            if turn == 1:
                wrong = {name: found.wrong for name, found in self.measured.items()}
                self.measured = {name: Measured(wrong=wrong[name]) for name in self._contenders}
                self.recovered.clear()
            for name in self._contenders if turn % 2 == 0 else reversed(self._contenders):
                self._turn(name, self._contenders[name], self.measured[name])
            self._train_on(updates)

    def close(self) -> None:
        """Give back what contenders keep."""
        for contender in self._contenders.values():
            contender.close()

    def _turn(self, name: str, contender: Contender, found: Measured) -> None:
        self._save(name, contender, found)
        contender.rest()
        self._pulse(f"{name} restores")
        self._restore(contender, found, found.warm)
        if self._cold:
            self._pulse(f"{name} restores without cache")
            _drop_together(contender.place.folder)
            self._restore(contender, found, found.cold)
            if isinstance(contender, Ours):
                self._read_plainly(contender, found)
        if dist.get_rank() == 0 and name in self._saved:
            contender.forget(self._saved[name])
        self._saved[name] = self._state.update

    def _save(self, name: str, contender: Contender, found: Measured) -> None:
        self._pulse(f"{name} saves")
        tensors, before = self._state.tensors(), contender.place.sizes()
        dist.barrier()
        started = time.perf_counter()
        contender.save(tensors, self._state.update)
        stall = time.perf_counter() - started
        contender.wait()
        durable = time.perf_counter() - started
        dist.barrier()
        found.stall.append(_slowest(stall))
        found.durable.append(_slowest(durable))
        after = contender.place.sizes()
        found.written.append(sum(size for file, size in after.items() if file not in before))

    def _restore(self, contender: Contender, found: Measured, seconds: list[float]) -> None:
        like = {name: torch.zeros_like(tensor, device="cpu") for name, tensor in self._state.tensors().items()}
        dist.barrier()
        started = time.perf_counter()
        restored = contender.restore(like, self._state.update)
        seconds.append(_slowest(time.perf_counter() - started))
        found.wrong += [
            f"update {self._state.update}: {name} came back otherwise than it was saved"
            for name in self._state.differences(restored)
        ]

    def _read_plainly(self, contender: Ours, found: Measured) -> None:
        if contender.place.folder is not None:
            files = [contender.place.folder / name for name in contender.files()]
            _drop_together(contender.place.folder)
            seconds, nbytes = page_cache.read_seconds(files)
            found.plain.append(_slowest(seconds * self._state.nbytes / nbytes))

    def _train_on(self, updates: int) -> None:
        """Journal updates after our snapshot, recover, and compare with where training is by then."""
        ours = self._contenders.get(OURS)
        if not isinstance(ours, Ours):
            for _ in range(updates):
                self._state.advance()
            return
        self._pulse(f"{updates} updates are journalled")
        journalled = journal(ours, self._state, updates)
        self._pulse(f"{updates} updates are recovered")
        if self._cold:
            _drop_together(ours.place.folder)
        dist.barrier()
        found, wrong = recover(ours, self._state, journalled)
        self.recovered.append(found)
        self.measured[OURS].wrong += wrong


def _drop_together(folder: Path | None) -> None:
    """Every rank has a contender's files dropped from the cache; none reads before."""
    dist.barrier()
    if folder is not None:
        page_cache.drop(folder)
    dist.barrier()


def _slowest(seconds: float) -> float:
    longest = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return longest.item()
