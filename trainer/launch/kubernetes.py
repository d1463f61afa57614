"""A run on Kubernetes as plain trees: an Indexed Job with its headless Service, or a JobSet.

Each pod is a host: its completion index is the host's index, and pod 0 is where they meet. A pod that ended with 75 was
preempted and is made anew, as is one that its node lost; 2 and 3 (mistakes, damage) end the job; any other end counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gradwire.trainer.launch.exit_codes import ExitCode

Tree = dict[str, Any]
_CONTAINER = "gradwire"
_HOSTS = "host"  # the JobSet's only replicated job
_AFTER_GRACE = 30  # seconds that a pod gets beyond `launch.grace`, to end in good order


class Kind(StrEnum):
    """What keeps the hosts of a run: a JobSet, or an Indexed Job with a Service."""

    JOBSET = "jobset"
    JOB = "job"


@dataclass(frozen=True)
class Pods:
    """The hosts of a run, one pod each.

    Attributes:
        name: Name of everything that is made.
        hosts: Number of pods.
        image: Container image with gradwire and all that the run needs.
        command: What each pod runs.
        port: Where pod 0 serves the hosts' meeting.
        grace: Seconds that a host gets to save after a signal.
        gpus, cpus: Whole devices and cores of a pod; None leaves cores to the cluster.
        memory: Memory of a pod in Kubernetes' notation, or None.
        threads: OMP_NUM_THREADS of each worker, or None: a pod sees its node's cores, not those that it may use.
        claim, mount: A PersistentVolumeClaim and the folder where pods see it, or None.
        secret: A Secret whose keys become environment variables, such as credentials of an object store, or None.
    """

    name: str
    hosts: int
    image: str
    command: Sequence[str]
    port: int
    grace: float
    gpus: int = 0
    cpus: int | None = None
    memory: str | None = None
    threads: int | None = None
    claim: str | None = None
    mount: str | None = None
    secret: str | None = None


def endpoint(kind: Kind, name: str, port: int) -> str:
    """Where the hosts of a job of this name meet: pod 0, by the name that its Service gives it."""
    pod = f"{name}-0" if kind == Kind.JOB else f"{name}-{_HOSTS}-0-0"
    return f"{pod}.{name}:{port}"


def objects(kind: Kind, pods: Pods, retries: int) -> list[Tree]:
    """What to apply to the cluster.

    Args:
        kind: An Indexed Job needs nothing but Kubernetes; a JobSet needs its controller, and restarts all at once.
        pods: The hosts.
        retries: How often the hosts are started anew after one failed; preemptions do not count.
    """
    if kind == Kind.JOB:
        job = _object("batch/v1", "Job", pods.name, _job(pods, pods.name, backoff=retries * pods.hosts))
        return [_service(pods), job] if pods.hosts > 1 else [job]
    return [_object("jobset.x-k8s.io/v1alpha2", "JobSet", pods.name, _job_set(pods, retries))]


def _object(version: str, kind: str, name: str, spec: Tree) -> Tree:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _service(pods: Pods) -> Tree:
    """Gives each pod a name; before it is ready too, since the hosts meet before anything is."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": pods.name},
        "ports": [{"name": "meeting", "port": pods.port}],
    }
    return _object("v1", "Service", pods.name, spec)


def _job_set(pods: Pods, retries: int) -> Tree:
    hopeless = {"name": "hopeless", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": pods.name},
        "failurePolicy": {"maxRestarts": retries, "rules": [hopeless]},
        "replicatedJobs": [{"name": _HOSTS, "replicas": 1, "template": {"spec": _job(pods, None, backoff=0)}}],
    }


def _job(pods: Pods, subdomain: str | None, backoff: int) -> Tree:
    return {
        "completionMode": "Indexed",
        "completions": pods.hosts,
        "parallelism": pods.hosts,
        "backoffLimit": backoff,
        "podFailurePolicy": {"rules": _rules()},
        "template": {"spec": _pod(pods, subdomain if pods.hosts > 1 else None)},
    }


def _rules() -> list[Tree]:
    def ended(*codes: int) -> Tree:
        return {"containerName": _CONTAINER, "operator": "In", "values": [int(code) for code in codes]}

    return [
        {"action": "FailJob", "onExitCodes": ended(ExitCode.USAGE, ExitCode.CHECKPOINT)},
        {"action": "Ignore", "onExitCodes": ended(ExitCode.PREEMPTED)},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _pod(pods: Pods, subdomain: str | None) -> Tree:
    volumes: list[Tree] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    if pods.claim is not None:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": pods.claim}})
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(pods.grace) + _AFTER_GRACE,
        "containers": [_container(pods)],
        "volumes": volumes,
    }
    return spec if subdomain is None else {"subdomain": subdomain} | spec


def _container(pods: Pods) -> Tree:
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # 64 MB otherwise, too little for data workers
    if pods.mount is not None:
        mounts.append({"name": "runs", "mountPath": pods.mount})
    container: Tree = {"name": _CONTAINER, "image": pods.image, "command": list(pods.command)}
    if pods.threads is not None:
        container["env"] = [{"name": "OMP_NUM_THREADS", "value": str(pods.threads)}]
    if pods.secret is not None:
        container["envFrom"] = [{"secretRef": {"name": pods.secret}}]
    if pods.hosts > 1:
        container["ports"] = [{"name": "meeting", "containerPort": pods.port}]
    if amounts := _amounts(pods):
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    return container | {"volumeMounts": mounts}


def _amounts(pods: Pods) -> dict[str, str]:
    wanted = {"cpu": pods.cpus, "memory": pods.memory, "nvidia.com/gpu": pods.gpus or None}
    return {name: str(amount) for name, amount in wanted.items() if amount is not None}
