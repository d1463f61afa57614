"""Who started this process, told from its environment: nobody, torchrun, Kubernetes, or srun.

Nothing here imports torch: the thread count must be in the environment before torch loads its libraries.
"""

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from gradwire.trainer.launch.errors import PlacementError

CONTROLLER = "GRADWIRE_CONTROLLER"  # process id of our own controller, in the environment of its workers
ROUND = "GRADWIRE_ROUND"  # how often the workers of an elastic run have been started, with this time
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_POD = "JOB_COMPLETION_INDEX"  # Kubernetes' index of a pod in its Indexed Job: each pod is a host
_LARGEST_STEP = 4294967000  # Slurm numbers its batch, interactive and extern steps just below 2**32


@dataclass(frozen=True)
class Controller:
    """This process starts the workers of its host.

    Attributes:
        hosts: Number of hosts, or None where the configuration decides (`launch.hosts`).
        host: Index of this host, or None where the order of arrival decides.
        endpoint: `host:port` at which the hosts meet, or None where the configuration decides.
    """

    hosts: int | None = None
    host: int | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class Place:
    """This process is a worker.

    Attributes:
        rank, world_size: Among all workers.
        local_rank, local_world_size: Among the workers of this host.
        address, port: Where the workers' store is.
        restart: How often the workers have been restarted.
        controller: Process id of our own controller, or None under another launcher.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    restart: int = 0
    controller: int | None = None


def detect(environ: Mapping[str, str]) -> Controller | Place:
    """What this process is to be.

    Raises:
        PlacementError: the launcher's variables contradict each other.
    """
    if CONTROLLER in environ:  # a command that one of our workers started
        return Controller()
    if all(environ.get(name) for name in _RANK_VARIABLES):
        return place(environ)
    if 0 <= _integer(environ, "SLURM_STEP_ID", -1) < _LARGEST_STEP and "SLURM_PROCID" in environ:
        return _slurm(environ)
    return Controller(host=_integer(environ, _POD, -1) if environ.get(_POD) else None)


def place(environ: Mapping[str, str]) -> Place:
    """The worker's place from RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.

    Raises:
        PlacementError: a variable is missing, no number, or out of range.
    """
    rank, world_size = _integer(environ, "RANK"), _integer(environ, "WORLD_SIZE")
    local_world_size = _integer(environ, "LOCAL_WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise PlacementError(f"RANK={rank} must lie between 0 and WORLD_SIZE - 1 = {world_size - 1}.")
    return Place(
        rank=rank,
        world_size=world_size,
        local_rank=_integer(environ, "LOCAL_RANK", rank % local_world_size),
        local_world_size=local_world_size,
        address=environ["MASTER_ADDR"],
        port=_integer(environ, "MASTER_PORT"),
        restart=_integer(environ, ROUND, _integer(environ, "TORCHELASTIC_RESTART_COUNT", 0) + 1) - 1,
        controller=_integer(environ, CONTROLLER, 0) or None,
    )


def _slurm(environ: Mapping[str, str]) -> Controller | Place:
    tasks = _integer(environ, "SLURM_STEP_NUM_TASKS", _integer(environ, "SLURM_NTASKS", 1))
    nodes = _integer(environ, "SLURM_STEP_NUM_NODES", _integer(environ, "SLURM_NNODES", 1))
    names = expand_nodes(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_NODELIST") or "localhost")
    endpoint = f"{names[0] if nodes > 1 else '127.0.0.1'}:{_port(environ)}"
    if tasks == nodes:
        return Controller(nodes, _integer(environ, "SLURM_NODEID", 0), endpoint)
    host, port = endpoint.rsplit(":", 1)
    counts = expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", str(tasks)))
    return place(
        {
            **environ,
            "RANK": environ["SLURM_PROCID"],
            "WORLD_SIZE": str(tasks),
            "LOCAL_RANK": environ.get("SLURM_LOCALID", "0"),
            "LOCAL_WORLD_SIZE": str(counts[_integer(environ, "SLURM_NODEID", 0)]),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
        }
    )


def _port(environ: Mapping[str, str]) -> int:
    job, step = _integer(environ, "SLURM_JOB_ID", 0), _integer(environ, "SLURM_STEP_ID", 0)
    return 20_000 + (job * 101 + step) % 12_000  # below the ports that Linux hands out by itself


def expand_nodes(text: str) -> list[str]:
    """Expand Slurm's node list: `a[01-03,7],b` gives a01, a02, a03, a7, b."""
    names: list[str] = []
    for prefix, ranges, suffix in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)(?:,|$)", text):
        if not ranges:
            names.append(prefix + suffix)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            names += [
                f"{prefix}{number:0{len(first)}d}{suffix}" for number in range(int(first), int(last or first) + 1)
            ]
    return names


def expand_counts(text: str) -> list[int]:
    """Expand Slurm's tasks per node: `2(x3),1` gives 2, 2, 2, 1."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def set_threads(environ: MutableMapping[str, str], processes: int) -> None:
    """Give each of this host's workers its share of the cores, unless OMP_NUM_THREADS is set.

    The count depends on the machine and the number of processes alone, because sums depend on it in the last bits.
    """
    environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"\d+", text):
        raise PlacementError(f"The environment variable {name} must be a whole number, found {text!r}.")
    return int(text)
