"""Whether the large parts fit together: the data to the model, and the schedules to the length of the run."""

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from gradwire.trainer.config.construction import argument, build_data, build_model, complaint
from gradwire.trainer.config.instantiation import instantiate
from gradwire.trainer.config.interpolation import leaves
from gradwire.trainer.config.training_data import has_length, unreadable
from gradwire.trainer.config.values import Fault

if TYPE_CHECKING:
    from gradwire.schedulers import SchedulerError

Config = Mapping[str, Any]
_KEYS = {  # where the parts of a plan are configured
    "lr": "lr",
    "batch": "batch.schedule",
    "scaling": "scaling",
    "run_length": "run.length",
    "granule": "batch.granule",
    "context": "data.context",
    "epoch_samples": "data",
    "betas": "optimizer.betas",
    "eps": "optimizer.eps",
}
_AN_EPOCH = 1_000_000  # samples; stands in for a length that only the data knows


def unfit(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    """What the constructors of model and data refuse, and where the two do not fit."""
    yield from unreadable(config["data"], allow)
    model, data = build_model(config, allow), build_data(config, allow)
    faults = [part for part in (model, data) if isinstance(part, Fault)]
    yield from faults
    if model is not None and not faults:
        yield from _sequences(config, model, data, allow)
        yield from _kind(config, model, data)
        yield from _adapted(config, model, allow)


def _sequences(config: Config, model: Any, data: Any, allow: tuple[str, ...]) -> Iterator[Fault]:
    """Whether the model takes the data's sequences and token ids."""
    for name, what in (("context", "tokens a sample"), ("vocabulary", "different token ids")):
        limit = getattr(model, name, None)
        needed = argument(config, "data", name, allow) if data is None else getattr(data, name, None)
        if isinstance(limit, int) and isinstance(needed, int) and needed > limit:
            key = f"data.{name}" if name in config["data"] else f"model.{name}" if name in config["model"] else "model"
            yield Fault(
                key, f"the data has {needed} {what} and the model takes {limit}: raise model.{name} to {needed}"
            )


def _kind(config: Config, model: Any, data: Any) -> Iterator[Fault]:
    """Whether the data gives what the model's own loss asks for, as far as our own data sources go."""
    from gradwire.trainer.data import Digits

    if config["loss"] is not None or data is None:
        return
    loss, tokens = getattr(model, "default_loss", None), isinstance(getattr(data, "vocabulary", None), int)
    if (loss == "next_token" and isinstance(data, Digits)) or (loss == "classification" and tokens):
        gives = "token ids" if tokens else "images with labels"
        reason = f"{type(model).__name__} is trained by {loss} and {type(data).__name__} gives {gives}"
        yield Fault("data._target_", f"{reason}: choose another model or other data, or set loss")


def _adapted(config: Config, model: Any, allow: tuple[str, ...]) -> Iterator[Fault]:
    """What an adapter has against the model; where that has no tensors yet, they get none here either."""
    if config.get("adapter") is None:
        return
    from gradwire.trainer.config.shapes import shapes_only

    try:
        with shapes_only():
            own = {name: value for name, value in config["adapter"].items() if name != "init"}
            instantiate(own, allow).apply(model)
    except Exception as error:  # whatever an adapter raises is what it has against the model
        yield complaint("adapter", config["adapter"], error)


def refused_plan(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    """What the plan of batch size and learning rate refuses; its parts must be accepted already."""
    from gradwire.schedulers import SchedulerError
    from gradwire.trainer.assemble import build_plan

    epochs = [value for value in _texts([config["run"]["length"], config["lr"], config["batch"]]) if "epoch" in value]
    if epochs and "epoch" not in config["run"]["length"] and has_length(config["data"], allow):
        return  # how long an epoch is against the run is known once the data is there
    train = range(_AN_EPOCH) if epochs and has_length(config["data"], allow) else None
    context = argument(config, "data", "context", allow) or 1
    try:
        build_plan(config, SimpleNamespace(train=train, context=context), allow)
    except SchedulerError as error:
        yield Fault(_place(config, error), str(error))


def _place(config: Config, error: "SchedulerError") -> str:
    """The key that an error of the plan is about: the part that it names, and there the argument that it speaks of."""
    sections = {"lr": config["lr"], "batch.schedule": config["batch"]["schedule"], "scaling": config["scaling"]}
    key = _KEYS.get(error.part or "run_length", "run.length")
    quoting = [f"{name}.{leaf}" for name, node in sections.items() for leaf in _quoted(node, str(error))]
    here = [place for place in quoting if place.startswith(f"{key}.")]
    if key not in sections or here:
        return here[0] if here else key
    spoken = complaint(key, sections[key], error).key
    return quoting[0] if quoting and spoken == key else spoken


def _quoted(node: Config, message: str) -> list[str]:
    """The arguments of a schedule whose duration a message repeats."""
    from gradwire.schedulers import Duration, DurationError

    found = []
    for name, value in leaves(node):
        try:
            duration = str(Duration.parse(value))
        except DurationError:
            continue
        if re.search(rf"(?<![\w.]){re.escape(duration)}(?!\w)", message):
            found.append(name)
    return found


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from _texts(value)
    elif isinstance(tree, str):
        yield tree
