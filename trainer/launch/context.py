"""What a worker knows of its place in the run, and the process groups that tie it to the other ranks."""

import datetime
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from gradwire.trainer.launch import run_directory
from gradwire.trainer.launch.elastic import LAUNCH, Change
from gradwire.trainer.launch.environment import Place
from gradwire.trainer.launch.errors import HostLostError, PlacementError
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.signals import StopRequest
from gradwire.trainer.launch.watchdog import Watchdog

SAVED = "gradwire/saved"  # in the store, once this launch has made a snapshot


@dataclass(frozen=True)
class WorkerContext:
    """A rank's place, handed to whatever trains.

    Attributes:
        rank, world_size: Among all workers.
        local_rank, local_world_size: Among the workers of this host.
        device: The device of this rank.
        run_dir: The run directory (on this host; hosts need no shared disk).
        store: Key-value store that all ranks share, empty at every restart.
        control: A gloo group of all ranks for flags and small host-side messages, apart from the gradients' group.
        stop: Set when somebody asked to stop: agree on it, save, return `ExitCode.PREEMPTED`.
        watchdog: To be told of each phase.
        mode: `train`, `evaluate` or `batch-size`.
        restore: Checkpoint to start from: `latest`, `latest-if-any`, an update as text, or None.
        allow: Module prefixes that the user allows as targets.
        screen: The screen's output stream as it was before output went to the log.
        saved: To be called after each snapshot: from then on a restart goes on from the newest one.
        accept: To be called once the snapshot of a resumed run was found to fit: from then on the run directory says
            that the run goes on, with this configuration. A resume that is refused before changes nothing.
        arguments: What the mode is told beside the configuration.
        change: Why hosts of an elastic run started their workers again, or None.
        launch: Of an elastic run, what no other launch of it has; else None.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    run_dir: Path
    store: Store
    control: dist.ProcessGroup
    stop: StopRequest
    watchdog: Watchdog
    mode: str
    restore: str | None
    allow: tuple[str, ...]
    screen: TextIO
    saved: Callable[[], None] = lambda: None
    accept: Callable[[], None] = lambda: None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    change: Change | None = None
    launch: str | None = None


def open_store(place: Place, timeout: datetime.timedelta) -> Store:
    """Connect to the store of this run: the controller's, torchrun's, or one that rank 0 serves.

    Raises:
        HostLostError: nobody answers there, or the port is somebody else's.
    """
    url = f"tcp://{place.address}:{place.port}"
    store: Store
    try:
        store, _, _ = next(rendezvous(url, place.rank, place.world_size, timeout=timeout))
    except dist.DistNetworkError as error:
        reason = str(error).splitlines()[0]
        raise HostLostError(
            f"The ranks cannot meet at {place.address}:{place.port} (MASTER_ADDR, MASTER_PORT): {reason} Choose a free "
            "port of a host that all others reach."
        ) from error
    return store


def own_connection(store: Store) -> Store:
    """The same store over a connection of its own: a call that blocks on one does not hold up the other."""
    connection: Store = store.clone()  # type: ignore[attr-defined]  # missing in torch's stubs
    return connection


def attempt_store(store: Store, place: Place) -> Store:
    """The part of the store that belongs to this attempt: after a restart it is empty again."""
    return PrefixStore(f"gradwire/attempt-{place.restart}", store)


def use_threads(environ: Mapping[str, str]) -> None:
    """Compute with as many threads as OMP_NUM_THREADS says, whatever it said when torch was loaded."""
    torch.set_num_threads(int(environ["OMP_NUM_THREADS"].split(",")[0]))


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of a rank: `auto` takes the GPU with its local rank where there are GPUs.

    Raises:
        PlacementError: cuda is asked for and this host has no GPU for the rank.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and available == 0):
        return torch.device("cpu")
    if local_rank >= available:
        raise PlacementError(
            f"launch.device={wanted}: local rank {local_rank} finds no GPU of its own, {available} on this host. "
            f"Set launch.processes={available} or launch.device=cpu."
        )
    return torch.device("cuda", local_rank)


@contextmanager
def process_groups(
    store: Store, place: Place, device: torch.device, timeout: datetime.timedelta
) -> Iterator[dist.ProcessGroup]:
    """Open torch's default group (nccl beside gloo on GPUs) and the control group, which is handed out.

    The groups are torn down only in good order; after an error the process leaves without them.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timeout,
    )
    control = dist.new_group(backend="gloo", timeout=timeout)
    assert control is not None
    yield control
    dist.barrier(group=control)
    dist.destroy_process_group()


def group_timeout(watchdog: float | None) -> datetime.timedelta:
    """Longer than the watchdog's patience: it names the rank that hangs before a collective gives up."""
    return datetime.timedelta(seconds=max(1800.0, 2 * watchdog + 60) if watchdog else 1800.0)


def worker_context(
    place: Place,
    job: Job,
    device: torch.device,
    base: Store,
    store: Store,
    control: dist.ProcessGroup,
    stop: StopRequest,
    watchdog: Watchdog,
    screen: TextIO,
) -> WorkerContext:
    """Put a rank's context together.

    A restarted training goes on from the newest snapshot once this launch (whose attempts share `base`) has made one;
    until then it starts as the first attempt did, not from what somebody else left in the store.
    """
    assert job.run_dir is not None
    return WorkerContext(
        rank=place.rank,
        world_size=place.world_size,
        local_rank=place.local_rank,
        local_world_size=place.local_world_size,
        device=device,
        run_dir=job.run_dir,
        store=store,
        control=control,
        stop=stop,
        watchdog=watchdog,
        mode=job.mode,
        restore="latest-if-any" if place.restart and base.check([SAVED]) else job.restore,
        allow=job.allow,
        screen=screen,
        saved=lambda: base.set(SAVED, "yes"),
        accept=lambda: _accept(place, job),
        arguments=job.arguments,
        change=_change(place, base),
        launch=base.get(LAUNCH).decode() if base.check([LAUNCH]) else None,
    )


def _change(place: Place, base: Store) -> Change | None:
    key = Change.KEY.format(restart=place.restart)
    return Change.from_json(base.get(key)) if base.check([key]) else None


def _accept(place: Place, job: Job) -> None:
    if job.run_dir is not None and job.restore is not None and place.local_rank == 0:
        run_directory.write_config(job.run_dir, job.config, job.overrides)
        run_directory.write_status(job.run_dir, "running")
