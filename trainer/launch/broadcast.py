"""Rank 0 prepares the job and every rank receives it, as JSON bytes in the store: nothing is ever unpickled."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradwire.trainer.launch.errors import BroadcastError, HostLostError
from gradwire.trainer.launch.failure import exit_code_of
from gradwire.trainer.launch.job import Job

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_KEY = "job"
_PATIENCE = 900.0  # seconds; rank 0 may have to open remote data to validate


def share(store: "Store", prepare: Callable[[], Job]) -> Job:
    """On rank 0: prepare the job and hand it to all others; a mistake found on the way ends them all with its code.

    Raises:
        Exception: what `prepare` raised, after the other ranks were told.
    """
    try:
        job = prepare()
    except BaseException as error:
        store.set(_KEY, json.dumps({"error": str(error), "exit_code": int(exit_code_of(error))}))
        raise
    store.set(_KEY, json.dumps({"job": job.to_json()}))
    return job


def receive(store: "Store", patience: float = _PATIENCE) -> Job:
    """On every other rank: wait for rank 0's job.

    Raises:
        BroadcastError: rank 0 found a mistake.
        HostLostError: rank 0 said nothing for `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while not store.check([_KEY]):
        if time.monotonic() > deadline:
            raise HostLostError(f"Rank 0 did not hand out its configuration within {patience:.0f} s.")
        time.sleep(0.02)
    message = json.loads(store.get(_KEY))
    if "error" in message:
        raise BroadcastError(message["error"], message["exit_code"])
    return Job.from_json(message["job"])
