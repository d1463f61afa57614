"""The command `gradwire manifest`. Nothing here imports torch before the command runs."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.trainer.arguments import ConfigDir, Overrides
from gradwire.trainer.launch.errors import ManifestError
from gradwire.trainer.launch.hosts import Hosts
from gradwire.trainer.launch.kubernetes import Kind, Pods, endpoint, objects

if TYPE_CHECKING:
    from gradwire.trainer.config import Valid
    from gradwire.trainer.config.contradictions import Machine
    from gradwire.trainer.config.values import Fault

_LONGEST = 40  # characters of a name: pods append index and suffix, and a label has 63
_PORT = 29400


def manifest(
    image: Annotated[str, typer.Option(help="Container image with gradwire and all that the run needs.")],
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    kind: Annotated[
        Kind, typer.Option(help="A JobSet, or an Indexed Job, which needs no extra controller.")
    ] = Kind.JOBSET,
    name: Annotated[str, typer.Option(help="Name of all that is made, and of the run's folder.")] = "gradwire",
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="CLAIM:PATH", help="A PersistentVolumeClaim that all pods mount there, for the run's folder."
        ),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(help="A Secret whose keys become environment variables, such as credentials."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each pod.")] = 0,
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores of each pod.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each pod, such as 64Gi.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="How often to start anew after a failure.")] = 3,
) -> None:
    """Print a Kubernetes manifest that trains: kubectl apply -f takes it."""
    from gradwire.trainer.cli import friendly

    with friendly():
        _check(name, memory)
        place, mount = _split_claim(claim)
        meeting, given = endpoint(kind, name, _PORT), list(overrides or [])
        fixed = _fixed(given, mount and f"{mount}/{name}")
        config = _checked([*given, *fixed, f"launch.endpoint={meeting}"], config_dir, gpus, cpus).config
        _check_kept(config, mount)
        processes = _machine(config["launch"], gpus, cpus).processes
        typed = ["gradwire", "train", "--resume", *([] if config_dir is None else ["--config-dir", str(config_dir)])]
        pods = Pods(
            name=name,
            hosts=_hosts(config["launch"]),
            image=image,
            command=[*typed, *given, *fixed, *_told(config["launch"], processes, gpus)],
            port=_PORT,
            grace=_seconds(config["launch"]["grace"]),
            gpus=gpus,
            cpus=cpus,
            memory=memory,
            threads=None if cpus is None else max(1, cpus // processes),
            claim=place,
            mount=mount,
            secret=secret,
        )
        typer.echo(to_yaml(objects(kind, pods, retries)), nl=False)


def to_yaml(objects: list[dict[str, Any]]) -> str:
    """Objects as YAML documents, in the order in which they are to be made."""
    import yaml  # type: ignore[import-untyped]

    text: str = yaml.safe_dump_all(objects, sort_keys=False, width=120)
    return text


def _check(name: str, memory: str | None) -> None:
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _LONGEST:
        raise ManifestError(
            f"--name {name!r}: expected small letters, digits and dashes, a letter first, {_LONGEST} at most."
        )
    if memory is not None and not re.fullmatch(r"\d+(\.\d+)?([kMGTPE]|[KMGTPE]i)?", memory):
        raise ManifestError(f"--memory {memory!r}: expected an amount as Kubernetes writes it, such as 64Gi.")


def _split_claim(claim: str | None) -> tuple[str | None, str | None]:
    if claim is None:
        return None, None
    place, _, mount = claim.partition(":")
    if not place or not mount.startswith("/"):
        raise ManifestError(f"--claim {claim!r}: expected CLAIM:PATH with an absolute path, such as runs:/runs.")
    return place, str(PurePosixPath(mount))


def _fixed(overrides: list[str], run_dir: str | None) -> list[str]:
    """The run's folder, unless it is given."""
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    if "launch.endpoint" in keys:
        raise ManifestError("launch.endpoint is the first pod's address, which the manifest names: leave it out.")
    return [f"run.dir={run_dir}"] if run_dir is not None and "run.dir" not in keys else []


def _checked(overrides: list[str], config_dir: Path | None, gpus: int, cpus: int | None) -> "Valid":
    """The configuration, checked for the pods' devices; what depends on the data, the pods check when they start."""
    from gradwire.trainer.config import compose, validate
    from gradwire.trainer.config.contradictions import contradictions_elsewhere

    def contradictions(config: Mapping[str, Any], allow: tuple[str, ...]) -> "list[Fault]":
        return contradictions_elsewhere(config, allow, _machine(config["launch"], gpus, cpus))

    return validate(compose(overrides, config_dir), contradictions)


def _machine(launch: Mapping[str, Any], gpus: int, cpus: int | None) -> "Machine":
    """What there will be to run on."""
    from gradwire.trainer.config.contradictions import Machine

    processes = launch["processes"] if launch["processes"] != "auto" else gpus or min(2, cpus or 2)
    return Machine(gpus, processes, processes * Hosts.of(launch["hosts"]).least, endpoint=True)


def _check_kept(config: Mapping[str, Any], mount: str | None) -> None:
    """Refuse a run whose snapshots end with its pods."""
    url, run_dir = config["checkpoint"]["url"], config["run"]["dir"]
    kept = url if url is not None else run_dir
    if kept is not None and "://" in kept and not kept.startswith("file://"):
        return
    if mount is None or not PurePosixPath((kept or "").removeprefix("file://")).is_relative_to(mount):
        key = "run.dir" if url is None else "checkpoint.url"
        raise ManifestError(
            f"{key}={kept}: what is saved there is gone with the pod. Name a volume (--claim CLAIM:PATH) and a "
            "folder in it, or an object store (checkpoint.url=s3://…)."
        )


def _hosts(launch: Mapping[str, Any]) -> int:
    hosts = Hosts.of(launch["hosts"])
    if hosts.elastic:
        raise ManifestError(
            f"launch.hosts={hosts}: a Job has a fixed number of pods, and starts lost ones anew by itself: write "
            f"launch.hosts={hosts.most}."
        )
    return hosts.most


def _told(launch: Mapping[str, Any], processes: int, gpus: int) -> list[str]:
    """What a pod cannot find out for itself: it sees its node's cores, and must not do without its GPUs."""
    meeting = [f"launch.endpoint={launch['endpoint']}"] if _hosts(launch) > 1 else []
    counted = [f"launch.processes={processes}"] if launch["processes"] == "auto" else []
    device = ["launch.device=cuda"] if gpus > 0 and launch["device"] == "auto" else []
    return [*meeting, *counted, *device]


def _seconds(duration: str) -> float:
    from gradwire.schedulers import Duration

    return Duration.parse(duration).seconds
