"""One run of benchmarks/checkpoint_kills.py: launched, killed several times at random moments, led to its end."""

import random
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.checkpoint_kill_kinds import EVERY, UPDATES, VICTIMS, Kind, Victim, strike, url_of
from benchmarks.runs import GRADWIRE, environment, held, lines

PATIENCE = 600.0  # seconds for whatever a run does next
GONE = 60.0  # seconds in which processes end whose controller was killed
_CONTINUING = re.compile(r"continuing from update (\d+)")
_UPDATE = re.compile(r"^update +\d+/", re.MULTILINE)
_NOTHING_SAVED = ("holds no snapshot", "holds a config.yaml")  # the latter where a start was struck before it wrote one


class RunError(RuntimeError):
    """A run did something that it must not do."""


@dataclass
class Kill:
    """One SIGKILL and what followed.

    Args:
        victim: Whom it hit.
        moment: When it was sent.
        continued: The update that the run went on from; -1 where it started anew.
        repeated: How many updates were done again; None where the next kill came before that showed.
        by: Who made it go on: the agent (`launch.restarts`), `gradwire resume`, or a new start where nothing was saved.
    """

    victim: Victim
    moment: str
    continued: int | None = None
    repeated: int | None = None
    by: str = ""


@dataclass
class Life:
    """A run, its kills, and how it ended."""

    kind: str
    store: str
    seed: str
    restarts: int
    kills: list[Kill] = field(default_factory=list)
    failure: str | None = None
    differences: list[str] = field(default_factory=list)
    loss_apart: float = 0.0  # of the last evaluation, from that of the undisturbed run, relative
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Life":
        return Life(**{**record, "kills": [Kill(**kill) for kill in record["kills"]]})


class Launch:
    """A `gradwire train` or `resume` that runs, its output in a file."""

    def __init__(self, arguments: list[str], output: Path, environ: dict[str, str]) -> None:
        self._path = output
        with output.open("w") as file:
            self.process = psutil.Popen(
                [*GRADWIRE, *arguments],
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        """Kill what is left of it."""
        for process in [*self.process.children(recursive=True), self.process] if not self.ended() else []:
            process.kill()
        self.process.wait()


class Killed:
    """Leads one run through its kills.

    Args:
        kind: What is run.
        store: `disk` or `s3`.
        seed: Tells the moments and the victims.
        folder: An empty folder; the run goes to `run` in it.
        kills: How many.
    """

    def __init__(self, kind: Kind, store: str, seed: str, folder: Path, kills: int) -> None:
        self._random = random.Random(seed)
        self._kind = kind
        self._store = store
        self._outputs = folder
        self.folder = folder / "run"
        self._targets = sorted(self._random.sample(range(self._first(), UPDATES - 4), kills))
        self.life = Life(kind.name, store, seed, restarts=self._random.choice([0, kills]))
        self._launches = 0
        self._abandoned = 0  # lines of updates that were done again, as far as they have been counted

    def _first(self) -> int:
        return 1 if self._kind.repeats is not None else EVERY + 2

    def run(self) -> Life:
        """All kills, and what follows, to the end of the run.

        Raises:
            RunError: it did not go on, or did not end well.
        """
        launch = self._train()
        try:
            for target in self._targets:
                moment = self._wait(launch, target)
                if launch.ended():
                    break
                if self._goes_on():
                    self._count()
                kill = Kill(self._random.choice(VICTIMS), moment)
                self.life.kills.append(kill)
                seen, taken_back = len(self._continued()), len(self._taken_back())
                doomed = strike(launch.process, kill.victim, self._random.randrange(2))
                _, alive = psutil.wait_procs(doomed, timeout=GONE)
                if alive:
                    raise RunError(f"{len(alive)} processes live on {GONE} s after {kill.victim} was killed")
                launch = self._next(launch, kill, seen, taken_back)
            self._until(launch.ended, launch, "the end")
            if launch.process.returncode != 0:
                raise RunError(f"the last launch ended with {launch.process.returncode}:\n{launch.output[-3000:]}")
            self._count()
            return self.life
        finally:
            launch.end()

    def _train(self) -> Launch:
        own = [f"run.dir={self.folder}", f"launch.restarts={self.life.restarts}"]
        own += [f"checkpoint.url={url_of(self._store, self.folder)}"] if self._store != "disk" else []
        return self._launch(["train", *own, *self._kind.command()])

    def _launch(self, arguments: list[str]) -> Launch:
        """The first one does not end before the first kill: it waits for that some updates behind its moment."""
        environ = environment() if self._launches else held(self._targets[0] + 3)
        self._launches += 1
        return Launch(arguments, self._outputs / f"launch-{self._launches}.txt", environ)

    def _wait(self, launch: Launch, target: int) -> str:
        """Wait for a random moment: in an update, or while a run that was killed before comes up again."""
        if self._launches > 1 and self._random.random() < 0.2:
            delay = self._random.uniform(0.3, 6.0)
            deadline = time.monotonic() + delay
            while time.monotonic() < deadline and not launch.ended():
                time.sleep(0.01)
            return f"{delay:.2f} s after its start"
        self._until(
            lambda: launch.ended() or (self._goes_on() and self._logged() >= target), launch, f"update {target}"
        )
        delay = self._random.uniform(0.0, 0.12)
        time.sleep(delay)
        return f"{delay:.3f} s after update {target} was logged"

    def _continued(self) -> list[int]:
        """The updates that ranks went on from, one for each time that they did."""
        log = self.folder / "logs" / "rank-0.log"
        return [int(update) for update in _CONTINUING.findall(log.read_text())] if log.exists() else []

    def _goes_on(self) -> bool:
        """Whether updates were done since the ranks were started last; what they take back has been taken back then."""
        log = self.folder / "logs" / "rank-0.log"
        text = log.read_text() if log.exists() else ""
        return _UPDATE.search(text, max((found.end() for found in _CONTINUING.finditer(text)), default=0)) is not None

    def _logged(self) -> int:
        return max((line["update"] for line in lines(self.folder)), default=-1)

    def _taken_back(self) -> list[int]:
        """The updates that were done again, in the order in which that was noted."""
        return [line["update"] for line in lines(self.folder, "metrics.abandoned.jsonl")]

    def _count(self) -> None:
        """Once a run has gone on: how many updates were done again since it was last counted."""
        moved = self._taken_back()
        waiting = [kill for kill in self.life.kills if kill.repeated is None]
        for kill in waiting:
            kill.repeated = len(set(moved[self._abandoned :]))
        self._abandoned = len(moved)

    def _next(self, launch: Launch, kill: Kill, seen: int, taken_back: int) -> Launch:
        """The launch that goes on after a kill: the same one where its agent lives and may restart, or another."""

        def goes_on() -> bool:  # what was taken back without a word was taken back to the beginning
            if self.life.restarts == 0:  # then what is new was said before the kill, and seen after it
                return False
            return len(self._continued()) > seen or len(self._taken_back()) > taken_back

        self._until(lambda: launch.ended() or goes_on(), launch, "a restart")
        if goes_on() or not launch.ended():
            continued = self._continued()
            kill.by, kill.continued = "agent", continued[-1] if len(continued) > seen else -1
            return launch
        if launch.process.returncode == 0 and self._logged() >= UPDATES:  # the ranks were done when they were struck
            self.life.kills.remove(kill)
            return launch
        if kill.victim in ("rank", "all ranks") and launch.process.returncode != 1:
            raise RunError(f"exit code {launch.process.returncode} after a rank was killed:\n{launch.output[-3000:]}")
        return self._resume(kill)

    def _resume(self, kill: Kill) -> Launch:
        seen = len(self._continued())
        launch = self._launch(["resume", str(self.folder)])
        self._until(lambda: launch.ended() or len(self._continued()) > seen, launch, "a resumed run")
        if len(self._continued()) > seen:
            kill.by, kill.continued = "resume", self._continued()[-1]
            return launch
        if launch.process.returncode == 3 and any(reason in launch.output for reason in _NOTHING_SAVED):
            kill.by, kill.continued, kill.repeated = "new start", -1, self._logged() + 1
            subprocess.run(["rm", "-rf", str(self.folder)], check=True)
            self._abandoned = 0
            return self._train()
        raise RunError(f"resuming ended with {launch.process.returncode}:\n{launch.output[-3000:]}")

    def _until(self, condition: Callable[[], bool], launch: Launch, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise RunError(f"{PATIENCE:g} s without {what}:\n{launch.output[-3000:]}")
            time.sleep(0.005)
