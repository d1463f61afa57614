"""A host that takes part in an elastic run while the one that serves the store wants it to."""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from gradwire.trainer.launch.elastic import Call, Patience, Verdict
from gradwire.trainer.launch.errors import HostLostError, HostsGoneError, RunOverError
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure
from gradwire.trainer.launch.pulse import Pulse
from gradwire.trainer.launch.rendezvous import Handler, connect, within
from gradwire.trainer.launch.words import COUNT, LEADER, HostWord, LeaderWord, from_json, host_key, to_json

_POLL = 0.05


@dataclass
class _Link:
    """The way to a leader, and its newest word; what still comes over a link that was given up changes no other."""

    line: TCPStore
    host: int
    leader: LeaderWord = field(default_factory=LeaderWord)


class Follower(Handler):
    """Does what the leader says; finds its way back to it once it was cut off.

    Args:
        address: The leader's.
        port: Where it serves the store.
        processes: Workers of this host.
        keys: What the workers write into the store and this host may be asked for.
        say: Shows a line on the screen.
        patience: How long for what.

    Raises:
        HostLostError: nobody answers there.
    """

    def __init__(
        self,
        address: str,
        port: int,
        processes: int,
        keys: Sequence[str],
        say: Callable[[str], None],
        patience: Patience = Patience(),  # noqa: B008 - frozen
    ) -> None:
        self._address, self._port, self._keys = address, port, tuple(keys)
        self._say, self._patience = say, patience
        self._known: dict[str, str] = {}
        self._regroups, self._beats = False, count()
        self._mine = HostWord(name=_own_address(address, port), processes=processes)
        self._join(patience.arrival)

    def _join(self, patience: float) -> None:
        """Be a host of the run, a new one for the leader."""
        self.store: TCPStore = connect(self._address, self._port, patience)
        line = self.store.clone  # type: ignore[attr-defined]  # missing in torch's stubs
        try:
            own, self.host = within(self._patience.silence, lambda: (line(), int(self.store.add(COUNT, 1))))
        except (OSError, RuntimeError) as error:
            raise HostLostError(f"{self._where} answered, and then did not any more ({error}).") from error
        self._link = _Link(own, self.host)
        self._mine = replace(self._mine, name=_own_address(self._address, self._port), state="waiting", round=0)
        self._pulse = Pulse(partial(self._exchange, self._link), self._patience.beat)

    @property
    def round(self) -> int:
        """The round whose workers run or ran here."""
        return self._mine.round

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """The hosts of the round, by rank, each with its number of workers."""
        return self._link.leader.members

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until the leader wants this host in a round.

        Raises:
            RunOverError: the run ended before.
            HostsGoneError: the leader is gone, and does not come back.
        """
        self._regroups = False
        self._tell(state="waiting", failure=None)
        while True:
            word = self._link.leader
            rank = word.place(self.host)
            if word.state == "closed":
                raise RunOverError("The run ended before this host took part again.", int(word.exit_code or 0))
            if word.state == "running" and rank is not None and word.round != self.round:
                break
            if self._cut_off():
                self._rejoin()
            time.sleep(_POLL)
        self._tell(state="running", round=word.round)
        store, where = PrefixStore(f"round-{word.round}", self.store), RendezvousStoreInfo(self._address, self._port)
        return RendezvousInfo(store, rank, len(word.members), where)

    def look(self) -> Call | None:
        """Whether this host's workers are to end: asked often while they run."""
        word = self._link.leader
        if self._cut_off():
            return Call(gently=False, reason=f"Cut off from {self._where}.")
        if word.state == "closed" and word.exit_code not in (ExitCode.DONE, ExitCode.PREEMPTED):
            return Call(gently=False, reason="The run has ended.")
        if word.round != self.round or word.state == "gathering":
            return Call(gently=False, reason="The run goes on without this host.")
        return Call(word.gently, word.reason) if word.state == "over" else None

    def failed(self, failure: Failure) -> Verdict:
        """A rank of this host failed, and all of them have ended: hear what the leader decides."""
        self._tell(state="ended", failure=asdict(failure))
        return self._hear()

    def stopped(self) -> Verdict:
        """This host's ranks have saved and left, and nobody told this host to stop: hear why."""
        self._tell(state="ended")
        verdict = self._hear()
        gone = verdict.again and self._cut_off()  # the leader saved as well, and has ended
        return Verdict(again=False, exit_code=int(ExitCode.PREEMPTED)) if gone else verdict

    def depart(self) -> None:
        """This host was told to stop: the others go on without it."""
        self._say("This host leaves once all have saved; the others go on.")
        self._tell(leaving=True)
        self._pulse.flush(self._patience.suspicion)

    def finish(self, exit_code: int, failure: Failure | None = None) -> None:
        """This host's part is over."""
        self._tell(state="ended", failure=None if failure is None else asdict(failure))

    def leave(self, patience: float) -> None:
        """Say that this host is gone."""
        if self._mine.gone:
            return
        self._tell(gone=True)
        self._pulse.flush(min(patience, self._patience.suspicion))
        self._pulse.stop()

    def read(self, key: str) -> str | None:
        """What the workers wrote under a key, as far as this host has heard of it."""
        return self._known.get(key)

    def regroup(self) -> None:
        """Have torch's agent start the workers again."""
        self._regroups = True

    def num_nodes_waiting(self) -> int:
        """Whether torch's agent is to start the workers again, at no cost."""
        return int(self._regroups)

    @property
    def _where(self) -> str:
        return f"launch.endpoint={self._address}:{self._port}"

    def _cut_off(self) -> bool:
        return self._pulse.silence > self._patience.silence

    def _rejoin(self) -> None:
        """Look for the leader, and come to it as a new host."""
        self._say(f"{self._where} no longer answers: this host waits {self._patience.back:.0f} s for it.")
        self._pulse.stop()
        try:
            self._join(self._patience.back)
        except HostLostError as error:
            raise HostsGoneError(
                f"{error} What was saved is whole: run the same command again, with --resume, where it is to go on."
            ) from error

    def _hear(self) -> Verdict:
        """Wait for what the leader says about the end of this round; once more where it does not say it any more."""
        deadline = time.monotonic() + 2 * self._patience.verdict
        while time.monotonic() < deadline and not self._cut_off():
            word = self._link.leader
            if word.state == "closed":
                failure = None if word.failure is None else Failure(**word.failure)
                return Verdict(again=False, exit_code=int(word.exit_code or 0), failure=failure)
            if word.round != self.round or word.state in ("over", "gathering"):
                return Verdict(again=True)
            time.sleep(_POLL)
        return Verdict(again=True)

    def _exchange(self, link: _Link) -> None:
        """In the pulse's thread: repeat this host's word, hear the leader's."""
        line = link.line
        line.set(host_key(link.host), to_json(replace(self._mine, beat=next(self._beats))))
        if line.check([LEADER]):
            link.leader = from_json(LeaderWord, line.get(LEADER))
        for key in self._keys:
            if key not in self._known and line.check([key]):
                self._known = self._known | {key: line.get(key).decode()}

    def _tell(self, **changes: object) -> None:
        self._mine = replace(self._mine, **changes)  # type: ignore[arg-type]
        self._pulse.hurry()


def _own_address(address: str, port: int) -> str:
    """This host as the leader sees it; its name where there is no way."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
