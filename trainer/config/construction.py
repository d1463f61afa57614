"""Constructors as checks: cheap objects are built once in the controller, so that what they refuse is a mistake.

Schedules and the plan cost nothing, an optimizer stops where it takes the parameters, and a model is built on torch's
meta device, where tensors have a shape and no memory.
"""

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.fields import fields_of, is_section
from gradwire.trainer.config.instantiation import instantiate
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.signatures import REQUIRED, parameters
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import Fault

Config = Mapping[str, Any]
_AN_EPOCH = 1_000_000  # samples; stands in for a length that only the data knows
_NEAR = 48  # characters of a message within which a parameter's name is taken as what the message is about


def component_of(config: Config, section: str) -> dict[str, Any]:
    """A section's component without the keys of the section around it."""
    schema = fields_of(Root)[section].annotation
    own = set(fields_of(schema)) if is_section(schema) else set()
    return {name: value for name, value in config[section].items() if name not in own}


def argument(config: Config, section: str, name: str, allow: tuple[str, ...]) -> Any:
    """A component's argument, written or by default; None where it has none of this name."""
    node = config[section]
    if name in node:
        return node[name]
    parameter = parameters(resolve_target(node[TARGET], allow)).get(name)
    return None if parameter is None or parameter.default is REQUIRED else parameter.default


def refused(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    """What the constructors of schedules, the optimizer, the loss and the model refuse."""
    yield from _schedules(config, allow)
    yield from _optimizer(config, allow)
    yield from _loss(config, allow)
    yield from _model(config, allow)


def _schedules(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    for key, node in (
        ("lr", config["lr"]),
        ("batch.schedule", config["batch"]["schedule"]),
        ("scaling", config["scaling"]),
    ):
        yield from _built(key, node, allow)


class _Accepted(Exception):  # noqa: N818 - no error: the constructor got past its own checks
    """An optimizer has begun to take its parameters."""


class _NoParameters:
    """Stands in for a model's parameters: an optimizer checks its settings first and takes the parameters then.

    Going on would build the optimizer, for which torch imports its compiler, which takes seconds.
    """

    def __iter__(self) -> Iterator[Any]:
        raise _Accepted


def _optimizer(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    node = component_of(config, "optimizer")
    if not isinstance(node.get("lr"), int | float):
        yield Fault("optimizer.lr", "is missing: the plan starts from the peak learning rate, a number")
        return
    yield from _built("optimizer", node, allow, params=_NoParameters())


def _loss(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    if config["loss"] is not None:
        yield from _built("loss", config["loss"], allow)


def _built(key: str, node: Mapping[str, Any], allow: tuple[str, ...], **supplied: Any) -> Iterator[Fault]:
    while True:
        try:
            instantiate(node, allow, **supplied)
        except _Accepted:
            return
        except Exception as error:  # whatever a constructor raises is what it has against its arguments
            fault = _complaint(key, node, error)
            yield fault
            name = fault.key.removeprefix(key).lstrip(".")
            if not name:
                return
            node = {other: value for other, value in node.items() if other != name}  # what else does it refuse?
        else:
            return


def _model(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    import torch

    node = component_of(config, "model")
    try:
        with torch.device("meta"):
            model = instantiate(node, allow)
    except Exception as error:
        yield _complaint("model", node, error)
        return
    yield from _fit(config, model, allow)


def _fit(config: Config, model: Any, allow: tuple[str, ...]) -> Iterator[Fault]:
    """Whether the data's sequences and tokens fit into the model."""
    for name, what in (("context", "tokens"), ("vocabulary", "token ids")):
        limit, needed = getattr(model, name, None), argument(config, "data", name, allow)
        if isinstance(limit, int) and isinstance(needed, int) and needed > limit:
            yield Fault(
                f"data.{name}",
                f"the data has {needed} {what}, the model takes {limit}: lower data.{name} or raise model.{name}",
            )


def refused_plan(config: Config, allow: tuple[str, ...]) -> Iterator[Fault]:
    """What the plan of batch size and learning rate refuses; its parts must be accepted already."""
    from gradwire.trainer.assemble import build_plan

    epochs = [value for value in _texts([config["run"]["length"], config["lr"], config["batch"]]) if "epoch" in value]
    known = "epoch" in config["run"]["length"]
    if epochs and not known:
        return  # how long an epoch is against the run is known once the data is there
    train = range(_AN_EPOCH) if epochs else None
    context = argument(config, "data", "context", allow)
    try:
        build_plan(config, SimpleNamespace(train=train, context=context or 1), allow)
    except Exception as error:
        yield Fault(_plan_key(str(error)), str(error))


def _plan_key(message: str) -> str:
    for word, key in (("granule", "batch.granule"), ("beta", "scaling"), ("Batch", "batch.schedule"), ("peak", "lr")):
        if word in message:
            return key
    return "run.length"


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, list):
        for value in tree:
            yield from _texts(value)
    elif isinstance(tree, str):
        yield tree


def _complaint(key: str, node: Mapping[str, Any], error: Exception) -> Fault:
    """A constructor's error, with the argument that it speaks of where it names one."""
    message = str(error).strip() or type(error).__name__
    if not isinstance(error, ValueError | TypeError) and type(error).__module__ == "builtins":
        message = f"{type(error).__name__}: {message}"
    spoken = {"learning rate": "lr", "beta parameter": "betas", "epsilon": "eps"}
    text = message.lower()
    for words, name in {**spoken, **{name: name for name in node}}.items():
        if name in node and re.search(rf"\b{re.escape(words)}\b", text[:_NEAR]):
            return Fault(f"{key}.{name}", message)
    return Fault(key, message)
