"""What the hosts of an elastic run agree on. Who decides: launch/leader.py; who follows: launch/follower.py."""

import json
from dataclasses import asdict, dataclass

from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure

LAUNCH = "gradwire/launch"  # in the store: what no other launch of the same run has


@dataclass(frozen=True)
class Patience:
    """Seconds.

    Attributes:
        beat: Between two words of a host.
        silence: Without a word, after which a host is lost.
        suspicion: The same where ranks have lost their connections already.
        arrival: For enough hosts to come at the start.
        back: For enough to come back after a loss, or for the leader to be back.
        first_call: From the last arrival to the first round, where there could be more hosts.
        last_call: The same before later rounds, and before a run is interrupted for a host that waits.
        verdict: For all hosts' ranks to end once one has failed.
    """

    beat: float = 0.5
    silence: float = 10.0
    suspicion: float = 3.0
    arrival: float = 900.0
    back: float = 120.0
    first_call: float = 10.0
    last_call: float = 1.0
    verdict: float = 20.0


@dataclass(frozen=True)
class Call:
    """The round is over for this host's workers.

    Attributes:
        gently: They save first.
        reason: For people.
    """

    gently: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What comes after the workers' end.

    Attributes:
        again: Whether they are started once more.
        exit_code: Else the run's.
        failure: Else what ended the run, or None.
    """

    again: bool
    exit_code: int = int(ExitCode.DONE)
    failure: Failure | None = None


@dataclass(frozen=True)
class Change:
    """Why the workers were started again, as rank 0 reports it.

    Attributes:
        since: When what was lost was heard last, or a host was let in; seconds since the epoch.
        reason: For people.
        hosts: Hosts that take part from then on.
        before: Hosts that took part until then.
    """

    since: float
    reason: str
    hosts: int
    before: int

    KEY = "gradwire/change/{restart}"

    def to_json(self) -> str:
        """The record as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> "Change":
        """The record that `to_json` wrote."""
        return Change(**json.loads(text))
