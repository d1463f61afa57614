"""The three standard streams of a command, whoever started it with whatever in their place."""

import os
import sys
from io import TextIOWrapper


def make_usable() -> None:
    """Open closed standard streams on nothing, and have characters that a terminal lacks replaced.

    A closed descriptor would be taken by the next file that is opened, which then receives what is printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number: this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str, end: str = "\n") -> None:
    """Write a line for people; a screen that is gone (`gradwire train | head`) changes nothing about the run."""
    try:
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit succeeds too
