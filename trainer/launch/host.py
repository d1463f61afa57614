"""One host of a run that a cluster's engine has placed: its controller, told on its standard input what to do.

`python -m gradwire.trainer.launch.host` reads one line of JSON. When its input ends, whoever started it is gone: it
ends too, with all its workers.
"""

import json
import os
import signal
import sys
import threading

from gradwire.trainer.launch.environment import Controller
from gradwire.trainer.launch.errors import LaunchError, StoppedBeforeStart
from gradwire.trainer.launch.fork_server import ForkServer
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.local import launch
from gradwire.trainer.launch.signals import ControllerSignals


def order(job: Job, hosts: int, host: int, endpoint: str | None, program: tuple[str, ...]) -> str:
    """The line that a host is told.

    Args:
        job: What to run.
        hosts: Number of hosts.
        host: Which one this is.
        endpoint: `host:port` at which they meet, or None for a single one.
        program: The workers' program, as Python's own arguments.
    """
    told = {"job": job.to_json(), "hosts": hosts, "host": host, "endpoint": endpoint, "program": program}
    return f"{json.dumps(told)}\n"


def main() -> int:
    """Run what the input says; the exit code of the command."""
    signals = ControllerSignals()
    signals.install()
    try:
        told = json.loads(sys.stdin.readline())
        threading.Thread(target=_end_with_input, daemon=True).start()
        controller = Controller(told["hosts"], told["host"], told["endpoint"])
        with ForkServer() as ranks:
            return launch(Job.from_json(told["job"]), controller, signals, ranks, tuple(told["program"]))
    except (LaunchError, StoppedBeforeStart) as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # the workers go with their controller


if __name__ == "__main__":
    sys.exit(main())
