"""A number of hosts, and a number that may change."""

import re

import pytest

from gradwire.trainer.launch.hosts import Hosts


@pytest.mark.parametrize(
    ("value", "hosts"), [(1, Hosts(1, 1)), (4, Hosts(4, 4)), ("1:4", Hosts(1, 4, True)), ("2:2", Hosts(2, 2, True))]
)
def test_a_number_or_a_span_is_read_and_written(value, hosts):
    assert Hosts.of(value) == hosts
    assert str(hosts) == str(value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("2:1", "write 1:2"),
        ("0:2", "at least 1"),
        ("1:1", "write 1, or 1:2"),
        ("x", "MIN:MAX such as 1:4, found 'x'"),
        ("1:", "found '1:'"),
        ("1:2:3", "found '1:2:3'"),
        ("-1:2", "found '-1:2'"),
        ("1.5:2", "found '1.5:2'"),
        ("", "found ''"),
    ],
)
def test_what_is_no_span_is_refused(value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Hosts.of(value)
