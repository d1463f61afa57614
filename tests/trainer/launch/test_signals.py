"""Signals set flags, in processes of their own."""

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal, time
from gradwire.trainer.launch.signals import StopRequest
stop = StopRequest(); stop.install()
for number in {numbers}:
    os.kill(os.getpid(), number)
    print(stop.requested, stop.signal, flush=True)
"""


def run(numbers):
    return subprocess.run([sys.executable, "-c", CODE.format(numbers=numbers)], capture_output=True, text=True)


@pytest.mark.parametrize("number", [int(signal.SIGTERM), int(signal.SIGINT)])
def test_a_signal_is_noted_and_kills_nothing(number):
    done = run([number])
    assert (done.returncode, done.stdout) == (0, f"True {number}\n")


def test_the_first_signal_is_remembered():
    done = run([15, 15, 2])
    assert done.stdout.splitlines()[-1] == "True 15" and done.returncode == 0


def test_a_second_interrupt_ends_the_process():
    assert run([2, 2]).returncode == -signal.SIGINT
