"""The host at which an elastic run meets: hosts may come and go, and this one says who takes part.

It is always the first: rank 0, which writes the commits, is one of its workers. So hosts that are cut off from it never
go on by themselves, and there is one run, whatever happens to the network. Torch's own dynamic rendezvous unpickles
what it finds in the store; here the store holds JSON and numbers only.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from gradwire.trainer.launch.elastic import LAUNCH, Call, Change, Patience, Verdict
from gradwire.trainer.launch.errors import HostLostError, HostsGoneError
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure, first_of
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.rendezvous import Handler, serve
from gradwire.trainer.launch.roll import Roll
from gradwire.trainer.launch.words import LeaderWord

_POLL = 0.05
_LOST = ("killed", "peer")  # failures after which another try may do better


class Leader(Handler):
    """Serves the store, watches over the other hosts, and decides.

    Args:
        address: This host, as `launch.endpoint` names it.
        port: Where the store is served; 0 takes any.
        hosts: Fewest and most that train.
        processes: Workers of this host.
        restarts: How often the workers are started again after one was killed; hosts that come and go cost none.
        say: Shows a line on the screen.
        patience: How long for what.

    Raises:
        RuntimeError: the port is taken.
    """

    def __init__(
        self,
        address: str,
        port: int,
        hosts: Hosts,
        processes: int,
        restarts: int,
        say: Callable[[str], None],
        patience: Patience = Patience(),  # noqa: B008 - frozen
    ) -> None:
        self.store, self.host = serve(address, port), 0
        self._address, self._port = address, self.store.port
        self._hosts, self._processes, self._restarts = hosts, processes, restarts
        self._say, self._patience = say, patience
        self._word = LeaderWord()
        self._since: float | None = None
        self._regroups = False
        self.store.set(LAUNCH, secrets.token_hex(8))
        self._roll = Roll(self.store, patience.beat, patience.suspicion)

    @property
    def round(self) -> int:
        """How often the workers have been started."""
        return self._word.round

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """The hosts of the round, by rank, each with its number of workers."""
        return self._word.members

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until enough hosts are there for the next round.

        Raises:
            HostsGoneError: they did not come back.
            HostLostError: they did not come at the start.
        """
        self._regroups, before = False, len(self.members)
        come = self._gather()
        members = ((0, self._processes), *((host, self._roll.word(host).processes) for host in come))
        members = members[: self._hosts.most]
        if self._since is not None:
            self._explain(Change(self._since, self._word.reason, len(members), before))
        self._tell(LeaderWord("running", self.round + 1, members))
        store, where = PrefixStore(f"round-{self.round}", self.store), RendezvousStoreInfo(self._address, self._port)
        return RendezvousInfo(store, 0, len(members), where)

    def look(self) -> Call | None:
        """Whether this host's workers are to end: asked often while they run."""
        if self._word.state == "running" or (self._word.state == "over" and self._word.gently):
            self._watch()
        return Call(self._word.gently, self._word.reason) if self._word.state == "over" else None

    def failed(self, failure: Failure) -> Verdict:
        """A rank of this host failed, and all of them have ended: hear the other hosts, and decide."""
        self._await_ends()
        told = [self._roll.word(host) for host in self._others() if self._roll.word(host).round == self.round]
        cause = first_of([failure, *(Failure(**word.failure) for word in told if word.failure is not None)])
        lost = [host for host in self._others() if not self._alive(host, self._patience.suspicion)]
        left = [host for host in self._others() if self._roll.word(host).leaving]
        if lost or left:
            reason = f"{self._roll.names(lost)} no longer answers." if lost else f"{self._roll.names(left)} leaves."
            return self._again(reason, self._roll.last_sign(lost) if lost else cause.time)
        if cause.kind in _LOST and self._restarts > 0:
            self._restarts -= 1
            return self._again(f"{cause.message} ({self._restarts} restarts left)", cause.time)
        code = ExitCode.FAILED if cause.exit_code == ExitCode.PEER_LOST else ExitCode(cause.exit_code)
        self.finish(int(code), cause)
        return Verdict(again=False, exit_code=int(code), failure=cause)

    def stopped(self) -> Verdict:
        """This host's ranks have saved and left, and nobody told this host to stop: who did?"""
        if self._word.state == "over":
            return Verdict(again=True)
        self._await_ends()
        if left := [host for host in self._others() if self._roll.word(host).leaving]:
            return self._again(f"{self._roll.names(left)} leaves.", time.time())
        self.finish(int(ExitCode.PREEMPTED))  # the run itself: its time is over
        return Verdict(again=False, exit_code=int(ExitCode.PREEMPTED))

    def depart(self) -> None:
        """This host was told to stop, and the run ends with it: `finish` says so once its ranks have saved."""

    def finish(self, exit_code: int, failure: Failure | None = None) -> None:
        """The run is over, for all hosts."""
        told = None if failure is None else asdict(failure)
        self._tell(replace(self._word, state="closed", exit_code=exit_code, failure=told))

    def leave(self, patience: float) -> None:
        """Serve the store until the others have heard the end of it."""
        if self._word.state != "closed":
            self.finish(int(ExitCode.FAILED))
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and any(
            self._alive(host, self._patience.suspicion) for host in self._roll.hosts
        ):
            time.sleep(_POLL)

    def read(self, key: str) -> str | None:
        """What the workers wrote under a key, or None."""
        return self.store.get(key).decode() if self.store.check([key]) else None

    def regroup(self) -> None:
        """Have torch's agent start the workers again."""
        self._regroups = True

    def num_nodes_waiting(self) -> int:
        """Whether torch's agent is to start the workers again, at no cost."""
        return int(self._regroups)

    def _gather(self) -> list[int]:
        """The hosts that take part in the next round, beside this one."""
        first, begun = self.round == 0, time.monotonic()
        self._tell(replace(self._word, state="gathering"))
        call = self._patience.first_call if first else self._patience.last_call
        deadline = begun + (self._patience.arrival if first else self._patience.back)
        while True:
            come, now = self._waiting(), time.monotonic()
            enough, late = len(come) + 1 >= self._hosts.least, now > deadline
            settled = now - max([begun, *(self._roll.since(host) for host in come)]) > call
            if len(come) + 1 >= self._hosts.most or (enough and (late or (settled and not self._returning()))):
                return come
            if late:
                raise self._too_few(len(come) + 1, first)
            time.sleep(_POLL)

    def _too_few(self, found: int, first: bool) -> HostsGoneError | HostLostError:
        text = f"launch.hosts={self._hosts}, and there were {found} after "
        if first:
            return HostLostError(f"{text}{self._patience.arrival:.0f} s: start the same command on more.")
        return HostsGoneError(
            f"{text}{self._patience.back:.0f} s. What was saved is whole: resume the run when there are more."
        )

    def _explain(self, change: Change) -> None:
        key = Change.KEY.format(restart=self.round)
        self.store.set(key, change.to_json())
        self.store.get(key)  # what is read back is there
        self._since = None

    def _tell(self, word: LeaderWord) -> None:
        self._word = word
        self._roll.say(word)

    def _alive(self, host: int, silence: float) -> bool:
        return self._roll.alive(host, silence)

    def _listening(self) -> bool:
        return any(self._alive(host, self._patience.suspicion) for host in self._roll.hosts)

    def _others(self) -> list[int]:
        """The members of the round but this one."""
        return [host for host, _ in self.members if host != self.host]

    def _waiting(self) -> list[int]:
        """Hosts that are ready for the next round, in order of their first arrival."""
        alive = [host for host in self._roll.hosts if self._alive(host, self._patience.suspicion)]
        return [host for host in alive if self._roll.word(host).state == "waiting"]

    def _returning(self) -> list[int]:
        """Members of the last round that have still to end their workers."""
        alive = [host for host in self._others() if self._alive(host, self._patience.suspicion)]
        words = [self._roll.word(host) for host in alive]
        return [host for host, word in zip(alive, words, strict=True) if word.state != "waiting" and not word.leaving]

    def _await_ends(self) -> None:
        """Give the other hosts' ranks time to end as this one's have."""
        deadline = time.monotonic() + self._patience.verdict
        while time.monotonic() < deadline:
            alive = [host for host in self._others() if self._alive(host, self._patience.suspicion)]
            words = [self._roll.word(host) for host in alive]
            if all(word.round == self.round and word.state != "running" for word in words):
                return
            time.sleep(_POLL)

    def _watch(self) -> None:
        """Call the round off for a member that is lost, or for a host that waits where there is room."""
        lost = [host for host in self._others() if self._is_lost(host)]
        if lost:
            self._call_off(f"{self._roll.names(lost)} is lost.", self._roll.last_sign(lost), gently=False)
            return
        waiting = [host for host in self._waiting() if host not in self._others()]
        settled = all(time.monotonic() - self._roll.since(host) > self._patience.last_call for host in waiting)
        if self._word.state == "running" and waiting and settled and len(self.members) < self._hosts.most:
            self._call_off(f"{self._roll.names(waiting)} joins.", time.time(), gently=True)

    def _is_lost(self, host: int) -> bool:
        """Whether a member does not answer, or has given the round up by itself."""
        word = self._roll.word(host)
        gave_up = word.state == "waiting" and word.round == self.round
        return gave_up or not self._alive(host, self._patience.silence)

    def _again(self, reason: str, since: float) -> Verdict:
        self._call_off(reason, since, gently=False)
        return Verdict(again=True)

    def _call_off(self, reason: str, since: float, *, gently: bool) -> None:
        self._since = since if self._since is None else min(since, self._since)
        how = "save, and " if gently else ""
        self._say(f"{reason} All hosts {how}go on from the newest checkpoint.")
        self._tell(replace(self._word, state="over", gently=gently, reason=reason))
