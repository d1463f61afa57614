"""Signals only set a flag; the training loop asks for it between updates. Nothing here imports torch."""

import signal
from types import FrameType

from gradwire.trainer.launch.errors import StoppedBeforeStart


class StopRequest:
    """Whether somebody asked this worker to stop: SIGTERM or SIGINT. A second SIGINT ends the process at once.

    Attributes:
        signal: Number of the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def requested(self) -> bool:
        """Whether a signal came."""
        return self.signal is not None

    def install(self) -> None:
        """Take over SIGTERM and SIGINT (main thread only)."""
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        if number == signal.SIGINT:  # the kernel's own reaction works even while the main thread sits in a collective
            signal.signal(signal.SIGINT, signal.SIG_DFL)


class ControllerSignals:
    """What the controller was told: which signal came first, and whether SIGINT came again.

    While no worker runs a signal raises at once, since there is nothing to save.

    Attributes:
        first: The first signal (SIGHUP counts as SIGTERM), or None.
        insisted: Whether a second SIGINT came: stop now.
        workers_run: Set by the agent once there are workers to forward to.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.insisted = False
        self.workers_run = False

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGHUP (main thread only)."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.workers_run:
            raise StoppedBeforeStart(
                f"{signal.Signals(number).name} came before any worker had started: run the same command again."
            )
        if self.first is None:
            self.first = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        elif number == signal.SIGINT:
            self.insisted = True
