"""Where the hosts meet."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from gradwire.trainer.launch import rendezvous
from gradwire.trainer.launch.errors import PlacementError
from gradwire.trainer.launch.rendezvous import Meeting, interface_towards, is_this_machine, parse_endpoint
from tests.trainer.launch.test_outer_launchers import free_endpoint


@pytest.mark.parametrize(
    ("text", "parts"), [("a:1", ("a", 1)), ("10.0.0.1:29500", ("10.0.0.1", 29500)), ("[::1]:7", ("::1", 7))]
)
def test_endpoints_are_split(text, parts):
    assert parse_endpoint(text) == parts


@pytest.mark.parametrize("text", ["", "a", ":1", "a:", "a:b", "a:0", "a:65536", "a:-1"])
def test_what_is_no_endpoint_is_refused(text):
    with pytest.raises(PlacementError, match="host:port"):
        parse_endpoint(text)


def test_this_machine_knows_its_own_names():
    assert is_this_machine("127.0.0.1") and is_this_machine("localhost")
    assert not is_this_machine("192.0.2.1") and not is_this_machine("no-such-host.invalid")


def test_loopback_is_reached_through_lo():
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no-such-host.invalid") is None


def meet(endpoint, hosts):
    """The meetings of all hosts, in order of arrival."""
    return [Meeting(endpoint, hosts) for _ in range(hosts)]


def test_hosts_are_numbered_and_exchange_verdicts():
    meetings = meet(free_endpoint(), 3)
    assert [meeting.host for meeting in meetings] == [0, 1, 2]
    said = [None] * 3

    def take_part(index):
        meetings[index].next_rendezvous()
        said[index] = meetings[index].agree({"from": index})

    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert said == [[{"from": 0}, {"from": 1}, {"from": 2}]] * 3


def test_a_host_that_says_nothing_is_none():
    first, _ = meet(free_endpoint(), 2)
    assert first.agree({"x": 1}, patience=0.3) == [{"x": 1}, None]


def test_a_host_that_said_nothing_is_not_waited_for_again(monkeypatch):
    first, _, third = meet(free_endpoint(), 3)
    third._tell(first.store, "round-0/verdict/2", "{}")
    assert first.agree({"x": 1}, patience=0.3) == [{"x": 1}, None, {}]
    waits = []

    def third_leaves(seconds):
        third.leave(0.0)
        waits.append(third.store.get("left/2"))  # a store's set returns before it is done; what is read back is

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=third_leaves)
    monkeypatch.setattr(rendezvous, "time", clock)  # its own: other threads of this process sleep too
    first.leave(patience=60.0)
    assert len(waits) == 1  # until the third host left; the second never does


def test_a_host_too_many_is_refused():
    endpoint = free_endpoint()
    held = meet(endpoint, 2)
    with pytest.raises(PlacementError, match="host number 3"):
        Meeting(endpoint, 2)
    assert len(held) == 2


def test_a_port_in_use_is_refused_on_the_host_that_must_serve_it():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(PlacementError, match="Cannot serve"):
            Meeting(f"127.0.0.1:{taken.getsockname()[1]}", 2, host=0)
