"""What the hosts of an elastic run tell each other through the store, as JSON.

Every host repeats one document about itself, and the host that serves the store one about the run. Whoever reads the
newest ones knows all there is to know: nothing has to be remembered, and what was missed does no harm.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

LEADER = "leader"  # the key of the leader's word
COUNT = "hosts"  # counts the hosts that ever came

Word = TypeVar("Word", "HostWord", "LeaderWord")


def host_key(host: int) -> str:
    """The key of a host's word."""
    return f"host/{host}"


@dataclass(frozen=True)
class HostWord:
    """A host about itself.

    Attributes:
        name: For people.
        processes: Workers that it starts.
        state: `waiting` to take part, `running` its workers, or `ended`: they have left.
        round: The one whose workers run or ran.
        failure: The first failure of its workers, where they ended with one.
        leaving: It was told to stop: it does not come back by itself.
        gone: It does not answer any more.
        beat: Grows as long as it does.
    """

    name: str
    processes: int
    state: Literal["waiting", "running", "ended"] = "waiting"
    round: int = 0
    failure: dict[str, Any] | None = None
    leaving: bool = False
    gone: bool = False
    beat: int = 0


@dataclass(frozen=True)
class LeaderWord:
    """The host that serves the store about the run.

    Attributes:
        state: `gathering` hosts, `running`, the round is `over` and another follows, or the run is `closed`.
        round: The newest round.
        members: Its hosts, by rank, each with its number of workers.
        gently: Whether the workers of a round that is over are to save first.
        reason: Why it is over.
        exit_code: Of a closed run.
        failure: Of a closed run that failed.
    """

    state: Literal["gathering", "running", "over", "closed"] = "gathering"
    round: int = 0
    members: tuple[tuple[int, int], ...] = ()
    gently: bool = False
    reason: str = ""
    exit_code: int | None = None
    failure: dict[str, Any] | None = None

    def place(self, host: int) -> int | None:
        """The rank of a host among the members, or None."""
        return next((rank for rank, (member, _) in enumerate(self.members) if member == host), None)


def to_json(word: HostWord | LeaderWord) -> str:
    """A word as one line."""
    return json.dumps(asdict(word))


def from_json(kind: type[Word], text: str | bytes) -> Word:
    """The word that `to_json` wrote."""
    fields = json.loads(text)
    if "members" in fields:
        fields["members"] = tuple((int(host), int(processes)) for host, processes in fields["members"])
    return kind(**fields)
