"""What is no mistake and still should be known: rules with optimizers they were not shown for, idle codecs."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.communication import coded_axes, remarks
from gradwire.trainer.config.contradictions import Machine
from gradwire.trainer.config.measuring import never_measured
from gradwire.trainer.config.signatures import parameters
from gradwire.trainer.config.targets import resolve_target

Family = Literal["sgd", "adaptive"]
_ADAPTIVE = ("Adadelta", "Adafactor", "Adagrad", "RMSprop")  # torch's adaptive optimizers that have no betas
_ADVICE: Mapping[Family, str] = {
    "sgd": "adaptive optimizers follow the square root of the batch (Malladi et al. 2022, arXiv 2205.10287): "
    "scaling=sqrt, or find the learning rate at this batch",
    "adaptive": "SGD follows the batch linearly (Goyal et al. 2017, arXiv 1706.02677): scaling=linear, or find the "
    "learning rate at this batch",
}


def advice(config: Mapping[str, Any], allow: tuple[str, ...] = ()) -> Iterator[str]:
    """Notes on a configuration in which everything is right, one line each.

    Args:
        config: As `Checker` gave it back.
        allow: Packages that the user allows targets from.
    """
    yield from never_measured(config, allow)
    optimizer = resolve_target(config["optimizer"][TARGET], allow)
    family = family_of(optimizer)
    for key, node in (("scaling", config["scaling"]), ("batch.schedule", config["batch"]["schedule"])):
        rule = resolve_target(node[TARGET], allow)
        shown = getattr(rule, "shown_for", None)
        if shown is not None and family is not None and shown != family:
            for_what = "SGD" if shown == "sgd" else "Adam and its like"
            yield (
                f"note: {key} is {rule.__name__}, which was shown for {for_what}, and the optimizer is "
                f"{optimizer.__name__}: {_ADVICE[shown]}"
            )
    if coded_axes(config["comm"]):
        machine = Machine.here(config["launch"])
        yield from remarks(config["comm"], machine.processes, machine.world_size)


def family_of(optimizer: Any) -> Family | None:
    """Whether an optimizer divides by the gradient's size, as Adam does; None for what is neither that nor SGD.

    Args:
        optimizer: Its class.
    """
    import torch

    names = {base.__name__ for base in getattr(optimizer, "__mro__", ()) if base.__module__.startswith("torch.optim")}
    if "betas" in parameters(optimizer) or names & set(_ADAPTIVE):
        return "adaptive"
    return "sgd" if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.SGD) else None
