"""A stand-in for the trainer: updates that are one all-reduce each, and planted ways to go wrong.

`python program.py command '<json config>'` plays the command, `python program.py --job FILE` a worker.
"""

import ctypes
import json
import os
import signal
import sys
import time
from functools import partial, partialmethod
from pathlib import Path

import torch
import torch.distributed as dist

from gradwire.trainer.launch import meeting
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.elastic import Patience
from gradwire.trainer.launch.errors import LaunchError, StoppedBeforeStart
from gradwire.trainer.launch.failure import published
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.rendezvous import Meeting
from gradwire.trainer.launch.start import start
from gradwire.trainer.sweep import files
from gradwire.trainer.worker import main


def body(config: dict, context: WorkerContext) -> int:
    """Count updates; `plan` holds {"rank:update": action}, done in the first attempt only."""
    saved = context.run_dir / "saved.json"
    first = json.loads(saved.read_text())["update"] if context.restore and saved.exists() else 0
    context.accept()
    threads = torch.get_num_threads()
    note(
        context,
        f"start {first} restore {context.restore} threads {threads} on {context.device} of {context.world_size}",
    )
    if context.change is not None:
        note(context, f"hosts {context.change.before} then {context.change.hosts}: {context.change.reason}")
    for update in range(first, config["updates"]):
        context.watchdog.beat("forward", update)
        if context.restore is None:
            act(config["plan"].get(f"{context.rank}:{update}"), context)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == context.world_size
        if context.rank == 0:
            files.write(saved, json.dumps({"update": update + 1}))  # whole, though the rank be killed meanwhile
            context.saved()
        flag = torch.tensor([int(context.stop.requested)])
        dist.all_reduce(flag, group=context.control)  # nobody gets on before it is saved
        if flag.item() > 0:
            note(context, f"stopped {update + 1}")
            return 75
        note(context, f"update {update}")
        time.sleep(config.get("pause", 0.0))
    note(context, "done")
    return 0


def note(context: WorkerContext, text: str) -> None:
    print(f"rank {context.rank}: {text}", flush=True)


def act(action: str | None, context: WorkerContext) -> None:
    """Go wrong as planned."""
    if action is None:
        return
    note(context, f"acting {action} pid {os.getpid()}")
    if action == "raise":
        raise ZeroDivisionError("planted in " + "this rank")
    if action == "raise after another":
        assert published(context.store, wait=240) is not None
        raise ZeroDivisionError("planted")
    if action == "checkpoint":
        raise type("DamagedCheckpoint", (RuntimeError,), {"exit_code": 3})("update 7 is damaged")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "segfault":
        ctypes.string_at(0)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if action == "spin":
        spin_forever()
    if action == "hold the interpreter":
        ctypes.PyDLL(None).sleep(600)
    if action == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        while not context.stop.requested:
            time.sleep(0.01)
        note(context, "heard it and stays")
        time.sleep(600)


def spin_forever() -> None:
    while True:
        time.sleep(0.01)


def prepare() -> Job:
    config = json.loads(sys.argv[2])
    if "patience" in config:  # in seconds, with a host that may be gone
        Meeting.agree = partialmethod(Meeting.agree, patience=config["patience"])
    if "elastic" in config:
        meeting.meet = partial(meeting.meet, patience=Patience(**config["elastic"]))
    if config.get("mistake"):
        raise LaunchError("a planted mistake")
    job = Job(config, overrides=tuple(sys.argv[3:]))
    return job.repeatable() if config.get("again") else job


if __name__ == "__main__":
    if sys.argv[1] == "command":
        try:
            sys.exit(start(prepare, (str(Path(__file__)),), body))
        except (LaunchError, StoppedBeforeStart) as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
    main(body=body)
