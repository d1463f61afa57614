"""What may happen to the hosts of an elastic run, and what must become of it. Run by benchmarks/host_faults.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.host_lab import Fleet, LabError

BEGUN = 10  # the update at which things happen
BLINK = 4.0  # seconds: shorter than the silence after which a host is lost


def rank_killed(fleet: Fleet) -> None:
    fleet.workers(1)[0].kill()
    fleet.until_changes(1)


def first_rank_killed(fleet: Fleet) -> None:
    fleet.workers(0)[0].kill()
    fleet.until_changes(1)


def host_killed(fleet: Fleet) -> None:
    fleet.kill(1)
    fleet.until_changes(1)


def controller_killed(fleet: Fleet) -> None:
    fleet.kill_controller(1)
    fleet.until_changes(1)


def link_cut(fleet: Fleet) -> None:
    fleet.cut(1)
    fleet.until_changes(1)


def power_lost(fleet: Fleet) -> None:
    fleet.cut(1)
    fleet.kill(1)
    fleet.until_changes(1)


def link_cut_for_seconds(fleet: Fleet) -> None:
    fleet.cut(1)
    time.sleep(BLINK)
    fleet.heal(1)


def partition_healed(fleet: Fleet) -> None:
    fleet.cut(1)
    fleet.until_changes(1)
    fleet.heal(1)
    fleet.until_changes(2)


def host_held_up(fleet: Fleet) -> None:
    fleet.suspend(1)
    time.sleep(BLINK)
    fleet.wake(1)


def zombie(fleet: Fleet) -> None:
    fleet.suspend(1)
    fleet.until_changes(1)
    fleet.wake(1)
    fleet.until_changes(2)


def host_told_to_stop(fleet: Fleet) -> None:
    fleet.tell_to_stop(1)
    fleet.until_changes(1)


def host_joined(fleet: Fleet) -> None:
    fleet.start(1)
    fleet.until_changes(1)


def joined_and_lost(fleet: Fleet) -> None:
    host_joined(fleet)
    fleet.until(fleet.newest() + 5)
    fleet.kill(1)
    fleet.until_changes(2)


def one_of_three_lost_and_back(fleet: Fleet) -> None:
    fleet.kill(2)
    fleet.until_changes(1)
    fleet.start(2)
    fleet.until_changes(2)


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
class Case:
    """An event, and how a run takes it.

    Args:
        event: In words.
        act: Brings it about.
        says: What becomes of it, for the table.
        hosts: Those that are started in the beginning.
        span: `launch.hosts`.
        same: Whether as many hosts train all the time.
        codes: Exit codes by host; those that are killed have none.
        run: Folder of the run that ends, in the case's own.
        unplanned: How often hosts go on from what is durable, without having saved first.
    """

    event: str
    act: Callable[[Fleet], None]
    says: str
    hosts: tuple[int, ...] = (0, 1)
    span: str = "1:2"
    same: bool = False
    codes: dict[int, int] = field(default_factory=lambda: {0: 0})
    run: str = "run"
    unplanned: int = 1


BOTH = {0: 0, 1: 0}
ALL = {0: 0, 1: 0, 2: 0}
CASES = [
    Case("a rank killed", rank_killed, "restarted", same=True, codes=BOTH),
    Case("the first rank killed", first_rank_killed, "restarted", same=True, codes=BOTH),
    Case("a host killed", host_killed, "1 host goes on"),
    Case("a host's controller killed", controller_killed, "1 host goes on"),
    Case("a host's link cut", link_cut, "1 host goes on; the other ends with 75", codes={0: 0, 1: 75}),
    Case("a host killed, its link cut", power_lost, "1 host goes on"),
    Case("a link cut for 4 s", link_cut_for_seconds, "all wait", same=True, codes=BOTH, unplanned=0),
    Case("a network parted and healed", partition_healed, "1 host, then both", codes=BOTH),
    Case("a host held up for 4 s", host_held_up, "all wait", same=True, codes=BOTH, unplanned=0),
    Case("a host held up until it is given up", zombie, "1 host, then both", codes=BOTH),
    Case("a host told to stop", host_told_to_stop, "saves, leaves with 75", codes={0: 0, 1: 75}, unplanned=0),
    Case("a host joins", host_joined, "saves, then both", (0,), codes=BOTH, unplanned=0),
    Case("a host joins and is killed", joined_and_lost, "both, then 1 host", (0,)),
    Case(
        "one of three killed and back",
        one_of_three_lost_and_back,
        "2 hosts, then 3",
        (0, 1, 2),
        "2:3",
        codes={0: 0, 1: 0, 2: 0},
    ),
    Case("the host of the endpoint killed and back", meeting_place_restarted, "the other waits", same=True, codes=BOTH),
    Case(
        "the host of the endpoint held up until the run was taken over",
        meeting_place_gone,
        "the other ends with 75 and resumes; the first is fenced, ends with 1",
        codes={0: 1, 1: 0},
        run="successor",
    ),
]
