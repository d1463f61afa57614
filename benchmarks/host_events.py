"""What may happen to the hosts of an elastic run, and what must become of it. Run by benchmarks/host_faults.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.host_lab import Fleet, LabError

BEGUN = 10  # the update at which things happen
BLINK = 4.0  # seconds: shorter than the silence after which a host is lost


def lost(fleet: Fleet, how: Callable[[int], None], host: int) -> None:
    """Have a host go, and wait until the others have trained on without it."""
    before = len(fleet.changes())
    how(host)
    fleet.until_changes(before + 1)


def rank_killed(fleet: Fleet) -> None:
    fleet.workers(1)[0].kill()
    fleet.until_changes(1)


def first_rank_killed(fleet: Fleet) -> None:
    fleet.workers(0)[0].kill()
    fleet.until_changes(1)


def host_killed(fleet: Fleet) -> None:
    lost(fleet, fleet.kill, 1)


def controller_killed(fleet: Fleet) -> None:
    lost(fleet, fleet.kill_controller, 1)


def link_cut(fleet: Fleet) -> None:
    lost(fleet, fleet.cut, 1)


def power_lost(fleet: Fleet) -> None:
    fleet.cut(1)
    lost(fleet, fleet.kill, 1)


def link_cut_for_seconds(fleet: Fleet) -> None:
    fleet.cut(1)
    time.sleep(BLINK)
    fleet.heal(1)


def partition_healed(fleet: Fleet) -> None:
    lost(fleet, fleet.cut, 1)
    fleet.heal(1)
    fleet.until_changes(len(fleet.changes()) + 1)


def host_held_up(fleet: Fleet) -> None:
    fleet.suspend(1)
    time.sleep(BLINK)
    fleet.wake(1)


def zombie(fleet: Fleet) -> None:
    lost(fleet, fleet.suspend, 1)
    fleet.wake(1)
    fleet.until_changes(len(fleet.changes()) + 1)


def host_told_to_stop(fleet: Fleet) -> None:
    lost(fleet, fleet.tell_to_stop, 1)
    if (code := fleet.wait(1)) != 75:
        raise LabError(f"the host that was told to stop ended with {code}, not 75\n{fleet.said(1)}")


def host_joined(fleet: Fleet) -> None:
    before = len(fleet.changes())
    fleet.start(1)
    fleet.until_changes(before + 1)


def joined_host_killed(fleet: Fleet) -> None:
    fleet.until(fleet.newest() + 2)
    lost(fleet, fleet.kill, 1)


def one_of_three_killed(fleet: Fleet) -> None:
    lost(fleet, fleet.kill, 2)


def one_of_three_back(fleet: Fleet) -> None:
    before = len(fleet.changes())
    fleet.start(2)
    fleet.until_changes(before + 1)


def meeting_place_restarted(fleet: Fleet) -> None:
    update = fleet.newest()
    fleet.kill(0)
    time.sleep(2)
    fleet.start(0)
    fleet.until(update + 5)


def meeting_place_gone(fleet: Fleet) -> None:
    """Held up for so long that the run is taken over elsewhere; when it wakes, it must do no harm."""
    fleet.suspend(0)
    if (code := fleet.wait(1)) != 75:
        raise LabError(f"the other host ended with {code}, not 75\n{fleet.said(1)}")
    successor = fleet.folder / "successor"
    fleet.start(1, at=1, run=successor)
    fleet.until(BEGUN + 10, successor)
    fleet.wake(0)


@dataclass(frozen=True)
class Event:
    """What happens.

    Args:
        name: In words.
        act: Brings it about; returns once training goes on.
        becomes: What becomes of the run, for the table.
        planned: Whether all save first, so that no update may be lost; else one may.
    """

    name: str
    act: Callable[[Fleet], None]
    becomes: str
    planned: bool = False


@dataclass(frozen=True)
class Case:
    """A run, and what happens to it, one after another.

    Args:
        events: As they come.
        hosts: Those that are started in the beginning.
        span: `launch.hosts`.
        same: Whether as many hosts train all the time.
        codes: Exit codes by host; those that are killed have none.
        run: Folder of the run that ends, in the case's own.
        pace: Seconds between updates.
    """

    events: tuple[Event, ...]
    hosts: tuple[int, ...] = (0, 1)
    span: str = "1:2"
    same: bool = False
    codes: dict[int, int] = field(default_factory=lambda: {0: 0})
    run: str = "run"
    pace: float = 0.3


BOTH = {0: 0, 1: 0}
SLOWLY = 1.0  # for runs to which much happens
CASES = [
    Case((Event("a rank killed", rank_killed, "restarted"),), same=True, codes=BOTH),
    Case((Event("the first rank killed", first_rank_killed, "restarted"),), same=True, codes=BOTH),
    Case((Event("a host killed", host_killed, "1 host goes on"),)),
    Case((Event("a host's controller killed", controller_killed, "1 host goes on"),)),
    Case((Event("a host killed, its link cut", power_lost, "1 host goes on"),)),
    Case((Event("a link cut for 4 s", link_cut_for_seconds, "all wait"),), same=True, codes=BOTH),
    Case((Event("a host held up for 4 s", host_held_up, "all wait"),), same=True, codes=BOTH),
    Case(
        (
            Event("the network parted and healed", partition_healed, "1 host, then both"),
            Event("a host held up until it is given up", zombie, "1 host, then both"),
            Event("a host told to stop", host_told_to_stop, "saves, leaves with 75; 1 host goes on", planned=True),
            Event("a host joins", host_joined, "saves, then both", planned=True),
            Event("the host that joined killed", joined_host_killed, "1 host goes on"),
        ),
        pace=SLOWLY,
    ),
    Case(
        (
            Event("one of three hosts killed", one_of_three_killed, "2 hosts go on"),
            Event("it joins again", one_of_three_back, "saves, then 3 hosts", planned=True),
        ),
        hosts=(0, 1, 2),
        span="2:3",
        codes={0: 0, 1: 0, 2: 0},
        pace=SLOWLY,
    ),
    Case(
        (Event("a host's link cut for good", link_cut, "1 host goes on; the other ends with 75"),), codes={0: 0, 1: 75}
    ),
    Case(
        (Event("the host of the endpoint killed and back", meeting_place_restarted, "the other waits"),),
        same=True,
        codes=BOTH,
    ),
    Case(
        (
            Event(
                "the host of the endpoint held up until the run was taken over",
                meeting_place_gone,
                "the other ends with 75 and resumes; the first is fenced, ends with 1",
            ),
        ),
        codes={0: 1, 1: 0},
        run="successor",
    ),
]
