"""One entry for a command, whoever started it: it becomes this host's controller, or one of the workers."""

import os
from collections.abc import Callable

from gradwire.trainer.launch.environment import Place, detect, set_threads
from gradwire.trainer.launch.fork_server import ForkServer
from gradwire.trainer.launch.job import Job
from gradwire.trainer.launch.local import WORKER, launch
from gradwire.trainer.launch.signals import ControllerSignals
from gradwire.trainer.worker import Body, serve


def start(prepare: Callable[[], Job], program: tuple[str, ...] = WORKER, body: Body | None = None) -> int:
    """Run a job as what the environment says this process is.

    Args:
        prepare: Composes and validates the job. Under torchrun, or srun with several tasks per node, on rank 0 only.
        program: The workers' program, as Python's own arguments.
        body: What a worker runs; the trainer by default.

    Returns:
        The exit code, where this process is a controller; a worker ends here.

    Raises:
        LaunchError: the run cannot start.
    """
    who = detect(os.environ)
    if isinstance(who, Place):
        set_threads(os.environ, who.local_world_size)
        serve(who, prepare, body)
    signals = ControllerSignals()
    signals.install()
    with ForkServer() as ranks:
        job = prepare()
        if job.config["launch"]["engine"] != "ray":
            return launch(job, who, signals, ranks, program)
    from gradwire.trainer.launch.ray_cluster import launch_on_ray

    return launch_on_ray(job, signals, program)
