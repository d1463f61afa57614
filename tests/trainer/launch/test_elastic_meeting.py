"""Hosts that come and go, each in a thread, with real stores between them."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gradwire.trainer.launch import failure as failures
from gradwire.trainer.launch.elastic import Call, Change, Patience, Verdict
from gradwire.trainer.launch.errors import HostLostError, HostsGoneError, RunOverError
from gradwire.trainer.launch.failure import Failure
from gradwire.trainer.launch.follower import Follower
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.leader import Leader
from gradwire.trainer.launch.words import HostWord, LeaderWord, from_json, to_json

SOON = Patience(beat=0.05, silence=2.0, suspicion=2.0, arrival=240, back=1.5, first_call=0.4, last_call=0.2, verdict=60)
KILLED = failures.killed(0, -9, "")
PEER = Failure(0, 2.0, "peer", 76, "lost")


def later(action: Callable[[], Any]) -> Callable[[], Any]:
    """Start `action` in a thread; what is given back waits for its answer, or raises what it raised."""
    answers: list[Any] = []

    def act() -> None:
        try:
            answers.append(action())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()

    def answer() -> Any:
        thread.join(240)
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    return answer


class Company:
    """A leader with its followers, which are all gone at the end."""

    def __init__(self, hosts: str, restarts: int = 0) -> None:
        self.said: list[str] = []
        self.leader = Leader("127.0.0.1", 0, Hosts.of(hosts), 2, restarts, self.said.append, SOON)
        self.followers: list[Follower] = []

    def follower(self, processes: int = 1) -> Follower:
        port = self.leader.store.port
        self.followers.append(Follower("127.0.0.1", port, processes, ("told",), self.said.append, SOON))
        return self.followers[-1]

    def meet(self, *followers: Follower) -> tuple[tuple[int, int], ...]:
        """Have them all take part in the next round; its members."""
        asked = [later(each.next_rendezvous) for each in followers]
        self.hear(*followers)
        asked = [later(self.leader.next_rendezvous), *asked]
        ranks = [answer().rank for answer in asked]
        assert ranks == list(range(len(asked)))
        assert all(each.members == self.leader.members and each.round == self.leader.round for each in followers)
        return self.leader.members

    def hear(self, *followers: Follower) -> None:
        """Wait until the leader has heard that they wait: it calls for a moment only."""
        deadline = time.monotonic() + 240
        while not {each.host for each in followers} <= set(self.leader._waiting()):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def called_off(self, *, gently: bool) -> str:
        """Wait until the leader calls the round off; why."""
        call = self.called(self.leader)
        assert call.gently == gently
        return call.reason

    @staticmethod
    def called(host: Leader | Follower) -> Call:
        """Wait until `host` hears that its workers are to end."""
        deadline = time.monotonic() + 240
        while (call := host.look()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return call


@pytest.fixture
def company() -> Iterator[Callable[..., Company]]:
    made: list[Company] = []

    def make(*arguments: Any) -> Company:
        made.append(Company(*arguments))
        return made[-1]

    yield make
    for each in made:
        for follower in each.followers:
            follower.leave(0.2)
        each.leader.leave(0.2)


def vanish(follower: Follower) -> None:
    """The host is gone without a word."""
    follower._pulse.stop()
    follower._pulse._thread.join(240)


def test_words_read_back_as_they_were():
    mine = HostWord("a", 2, state="ended", round=3, failure={"rank": 1}, leaving=True)
    run = LeaderWord("closed", 4, ((0, 2), (3, 1)), True, "why", 1, {"rank": 0})
    assert from_json(HostWord, to_json(mine)) == mine and from_json(LeaderWord, to_json(run)) == run
    assert (run.place(3), run.place(1)) == (1, None)


def test_as_many_as_may_begin_at_once_and_ranks_follow_the_workers(company):
    there = company("1:3")
    assert there.meet(there.follower(1), there.follower(3)) == ((0, 2), (1, 1), (2, 3))


def test_fewer_begin_after_the_last_call(company):
    there = company("1:3")
    began = time.monotonic()
    assert there.meet() == ((0, 2),) and time.monotonic() - began >= SOON.first_call


def test_too_few_at_the_start_are_named(company):
    there = company("2:3")
    there.leader._patience = replace(SOON, arrival=0.3)
    with pytest.raises(HostLostError, match=r"launch\.hosts=2:3, and there were 1"):
        there.leader.next_rendezvous()


def test_a_host_that_vanishes_is_lost_and_the_others_go_on(company):
    there = company("1:3")
    first, second = there.follower(), there.follower()
    there.meet(first, second)
    vanish(first)
    since = time.time()
    assert "is lost" in there.called_off(gently=False)
    decided = time.time()
    there.called(second)
    assert there.meet(second) == ((0, 2), (2, 1))
    change = Change.from_json(there.leader.read(Change.KEY.format(restart=1)))
    assert (change.before, change.hosts) == (
        3,
        2,
    ) and since - SOON.silence < change.since < decided - 0.9 * SOON.silence


def test_a_host_that_comes_later_joins_after_the_others_have_saved(company):
    there = company("1:2")
    there.meet()
    late = there.follower()
    asked = later(late.next_rendezvous)
    assert "joins" in there.called_off(gently=True)
    assert there.leader.stopped() == Verdict(again=True)
    assert there.leader.next_rendezvous().world_size == 2 and asked().rank == 1


def test_a_host_too_many_waits_and_is_told_the_end(company):
    there = company("1:2")
    there.meet(there.follower())
    waiting = later(there.follower().next_rendezvous)
    time.sleep(0.5)
    assert there.leader.look() is None
    there.leader.finish(0)
    with pytest.raises(RunOverError) as over:
        waiting()
    assert over.value.exit_code == 0


def test_a_host_too_many_takes_the_place_of_one_that_is_lost(company):
    there = company("1:2")
    first, spare = there.follower(), there.follower()
    asked = later(spare.next_rendezvous)
    there.meet(first)
    vanish(first)
    there.called_off(gently=False)
    assert there.leader.next_rendezvous().world_size == 2 and asked().rank == 1


def test_a_killed_rank_costs_a_restart_and_then_ends_the_run_for_all(company):
    there = company("1:2", 1)
    other = there.follower()
    there.meet(other)
    verdicts = [later(lambda: there.leader.failed(KILLED)), later(lambda: other.failed(PEER))]
    assert [verdict().again for verdict in verdicts] == [True, True]
    there.meet(other)
    verdicts = [later(lambda: there.leader.failed(PEER)), later(lambda: other.failed(KILLED))]
    assert [verdict() for verdict in verdicts] == [Verdict(again=False, exit_code=1, failure=KILLED)] * 2


def test_an_exception_ends_the_run_for_all(company):
    there = company("1:2", 3)
    other = there.follower()
    there.meet(other)
    error = Failure(1, 1.0, "error", 3, "damaged")
    verdicts = [later(lambda: there.leader.failed(PEER)), later(lambda: other.failed(error))]
    assert [verdict() for verdict in verdicts] == [Verdict(again=False, exit_code=3, failure=error)] * 2


def test_a_vanished_host_costs_no_restart(company):
    there = company("1:2")
    other = there.follower()
    there.meet(other)
    vanish(other)
    there.leader._patience = replace(SOON, suspicion=0.5)
    time.sleep(0.7)
    assert there.leader.failed(PEER).again and "no longer answers" in there.said[-1]
    assert there.meet() == ((0, 2),)


def test_a_host_that_is_told_to_stop_leaves_and_the_others_go_on(company):
    there = company("1:3")
    first, second = there.follower(), there.follower()
    there.meet(first, second)
    first.depart()
    first.finish(75)
    verdicts = [later(there.leader.stopped), later(second.stopped)]
    assert [verdict().again for verdict in verdicts] == [True, True]
    assert "leaves" in there.said[-1]
    assert there.meet(second) == ((0, 2), (2, 1))


def test_a_run_that_stops_by_itself_ends_with_75_for_all(company):
    there = company("1:2")
    other = there.follower()
    there.meet(other)
    verdicts = [later(there.leader.stopped), later(other.stopped)]
    assert [verdict() for verdict in verdicts] == [Verdict(again=False, exit_code=75)] * 2


def test_below_the_least_the_run_waits_and_then_ends_resumable(company):
    there = company("2:3")
    other = there.follower()
    there.meet(other)
    vanish(other)
    there.called_off(gently=False)
    with pytest.raises(HostsGoneError, match=r"launch\.hosts=2:3, and there were 1"):
        there.leader.next_rendezvous()
    assert there.meet(there.follower()) == ((0, 2), (2, 1))


def test_a_host_that_was_suspended_comes_back_as_the_one_it_was(company):
    there = company("1:2")
    other = there.follower()
    there.meet(other)
    host, exchange = other.host, other._pulse._exchange
    other._pulse._exchange = lambda: time.sleep(0.05)  # it neither speaks nor hears
    there.called_off(gently=False)
    assert there.meet() == ((0, 2),)
    other._pulse._exchange = exchange
    other._pulse.flush(240)
    assert other.look().reason == "The run goes on without this host."
    asked = later(other.next_rendezvous)
    there.called_off(gently=True)
    assert there.leader.next_rendezvous().world_size == 2 and asked().rank == 1 and other.host == host


def test_a_host_without_its_leader_waits_for_it_and_leaves_resumable(company):
    there = company("1:2")
    other = there.follower()
    there.meet(other)
    other._pulse.stop()
    other._pulse._gone = True  # as where the store is gone
    other._port = 1
    assert not other.look().gently
    with pytest.raises(HostsGoneError, match="run the same command again"):
        other.next_rendezvous()


def test_a_host_finds_another_leader_at_the_endpoint(company):
    there, successor = company("1:2"), company("1:2")
    other = there.follower()
    there.meet(other)
    other._pulse._gone = True
    other._port = successor.leader.store.port
    asked = [later(other.next_rendezvous)]
    successor.hear(other)
    asked = [later(successor.leader.next_rendezvous), *asked]
    assert [answer().rank for answer in asked] == [0, 1] and other.round == 1


def test_what_workers_write_is_heard(company):
    there = company("1:2")
    other = there.follower()
    there.leader.store.set("told", "here")
    other._pulse.flush(240)
    assert other.read("told") == there.leader.read("told") == "here"
    assert other.read("nothing") is there.leader.read("nothing") is None
