"""What the leader of an elastic run has heard of the other hosts, and for how long it has not."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch._C._distributed_c10d import TCPStore

from gradwire.trainer.launch.pulse import Pulse
from gradwire.trainer.launch.words import COUNT, LEADER, HostWord, LeaderWord, from_json, host_key, to_json


@dataclass(frozen=True)
class _Heard:
    """The newest word of a host: when it came, and since when the host has been in its state."""

    text: bytes
    word: HostWord
    at: float
    since: float


class Roll:
    """Hears all hosts, and repeats the leader's word, in a thread.

    Args:
        store: The one that the leader serves.
        beat: Seconds between two words of a host.
        patience: Seconds that saying something may take.
    """

    def __init__(self, store: TCPStore, beat: float, patience: float) -> None:
        self._line = store.clone()  # type: ignore[attr-defined]  # missing in torch's stubs
        self._beat, self._patience = beat, patience
        self._leader = LeaderWord()
        self._heard: dict[int, _Heard] = {}
        self._exchanged = time.monotonic()
        self._pulse = Pulse(self._exchange, beat)

    @property
    def hosts(self) -> list[int]:
        """All that ever came, in order."""
        return sorted(self._heard)

    def say(self, word: LeaderWord) -> None:
        """Have the hosts hear this from now on."""
        self._leader = word
        self._pulse.flush(self._patience)

    def word(self, host: int) -> HostWord:
        """The newest word of a host."""
        return self._heard[host].word

    def since(self, host: int) -> float:
        """When a host began to be in its state, on the monotonic clock."""
        return self._heard[host].since

    def alive(self, host: int, silence: float) -> bool:
        """Whether a host was heard in the last `silence` seconds, and has not said that it goes."""
        heard = self._heard[host]
        return not heard.word.gone and self._exchanged - heard.at < silence

    def last_sign(self, hosts: Sequence[int]) -> float:
        """When the first of these hosts to fall silent was heard last; seconds since the epoch."""
        return time.time() - max(time.monotonic() - self._heard[host].at for host in hosts)

    def names(self, hosts: Sequence[int]) -> str:
        """Hosts in words, at the beginning of a sentence."""
        return " and ".join(f"host {self.word(host).name}" for host in hosts).capitalize()

    def _exchange(self) -> None:
        now = time.monotonic()
        if (gap := now - self._exchanged) > 4 * self._beat:  # this process was held up: the others were not
            self._heard = {host: replace(heard, at=heard.at + gap) for host, heard in self._heard.items()}
        for host in range(1, self._line.add(COUNT, 0) + 1):
            known = self._heard.get(host)
            if (known is None or not known.word.gone) and self._line.check([host_key(host)]):
                self._hear(host, self._line.get(host_key(host)), now)
        self._line.set(LEADER, to_json(self._leader))
        self._exchanged = now

    def _hear(self, host: int, text: bytes, now: float) -> None:
        known = self._heard.get(host)
        if known is not None and text == known.text:
            return
        word = from_json(HostWord, text)
        same = known is not None and known.word.state == word.state
        since = known.since if known is not None and same else now
        self._heard = self._heard | {host: _Heard(text, word, now, since)}
