import socket
import threading
import time

import pytest

from gradwire.comm.channel import Channel


@pytest.fixture
def ends():
    pair = [Channel(end, 0.1) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
    yield pair
    for end in pair:
        end.close()


def _in_thread(action):
    found = []

    def run():
        try:
            found.append(action())
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_numbers_are_heard_under_their_tags_in_order(ends):
    here, there = ends
    for tag, number in ((1, 10), (2, 20), (1, 11)):
        here.tell(tag, (number, -number))
    assert there.hear(2, 240) == (20, -20)
    assert [there.hear(1, 240), there.hear(1, 240)] == [(10, -10), (11, -11)]


def test_threads_that_wait_for_other_tags_all_hear_theirs(ends):
    here, there = ends
    waiting = [_in_thread(lambda tag=tag: there.hear(tag, 240)) for tag in range(4)]
    for tag in reversed(range(4)):
        time.sleep(0.01)
        here.tell(tag, (tag, 0))
    for tag, (thread, found) in enumerate(waiting):
        thread.join(240)
        assert found == [(tag, 0)]


def test_what_does_not_come_is_an_error_in_time(ends):
    waiting = [
        _in_thread(lambda tag=tag, seconds=seconds: ends[0].hear(tag, seconds))
        for tag, seconds in ((1, 0.05), (2, 0.1))
    ]
    for thread, found in waiting:
        thread.join(240)
        assert found == ["timed out"]
    ends[1].tell(1, (3, 4))  # another time
    assert ends[0].hear(1, 240) == (3, 4)


@pytest.mark.parametrize("end", [0, 1])
def test_whoever_waits_fails_when_either_end_hangs_up_and_what_came_before_is_heard(ends, end):
    ends[1].tell(9, (1, 2))
    waiting = [_in_thread(lambda tag=tag: ends[0].hear(tag, 240)) for tag in (1, 2)]
    time.sleep(0.05)
    ends[end].hang_up()
    for thread, found in waiting:
        thread.join(240)
        assert len(found) == 1
        assert "closed" in found[0]
    assert ends[0].hear(9, 240) == (1, 2)


def test_an_end_that_reads_nothing_is_an_error_in_time(ends):
    with pytest.raises(TimeoutError):
        for number in range(100_000):
            ends[0].tell(1, (number, 0))
    ends[1].tell(1, (5, 6))
    assert ends[0].hear(1, 240) == (5, 6)
