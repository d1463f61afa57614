"""Constructors as checks: cheap objects are built once in the controller, so that what they refuse is a mistake.

Schedules and the plan cost nothing, an optimizer stops where it takes the parameters, and a model is built on torch's
meta device, where tensors have a shape and no memory.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.fields import fields_of, is_section
from gradwire.trainer.config.instantiation import instantiate
from gradwire.trainer.config.interpolation import leaves
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.signatures import REQUIRED, parameters
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import Fault

Config = Mapping[str, Any]
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
    """What the constructors of schedules, the optimizer, the loss and the codecs refuse."""
    yield from _schedules(config, allow)
    yield from _optimizer(config, allow)
    if config["loss"] is not None:
        yield from _built("loss", config["loss"], allow)
    for axis, node in config["comm"]["codecs"].items():
        yield from _built(f"comm.codecs.{axis}", node, allow)


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


def _built(key: str, node: Mapping[str, Any], allow: tuple[str, ...], **supplied: Any) -> Iterator[Fault]:
    while True:
        try:
            instantiate(node, allow, **supplied)
        except _Accepted:
            return
        except Exception as error:  # whatever a constructor raises is what it has against its arguments
            fault = complaint(key, node, error)
            yield fault
            name = fault.key.removeprefix(key).lstrip(".")
            if not name or _is_required(node, name, allow):  # without it nothing more can be found out
                return
            node = {other: value for other, value in node.items() if other != name}  # what else does it refuse?
        else:
            return


def _is_required(node: Mapping[str, Any], name: str, allow: tuple[str, ...]) -> bool:
    parameter = parameters(resolve_target(node[TARGET], allow)).get(name)
    return parameter is not None and parameter.default is REQUIRED


def build_model(config: Config, allow: tuple[str, ...]) -> Any | Fault | None:
    """The model on the meta device; a fault if its constructor refuses; None where it cannot be built there."""
    from gradwire.trainer.config.shapes import shapes_only

    node = component_of(config, "model")
    try:
        with shapes_only():
            return instantiate(node, allow)
    except Exception as error:
        if isinstance(error, NotImplementedError) or re.search(r"\bmeta\b", str(error)):
            return None  # it looks into its tensors, or loads them: no mistake
        return complaint("model", node, error)


def build_data(config: Config, allow: tuple[str, ...]) -> Any | Fault | None:
    """The data source, if it is one of ours, which read nothing until they are asked; a fault if it refuses."""
    node = component_of(config, "data")
    targets = [value for key, value in leaves(node) if key.rpartition(".")[2] == TARGET]
    if not all(str(target).startswith("gradwire.") for target in targets):
        return None
    try:
        return instantiate(node, allow)
    except Exception as error:
        return complaint("data", node, error)


def complaint(key: str, node: Mapping[str, Any], error: Exception) -> Fault:
    """A constructor's error, with the argument that it speaks of where it names one."""
    message = str(error).strip() or type(error).__name__
    if not isinstance(error, ValueError | TypeError) and type(error).__module__ == "builtins":
        message = f"{type(error).__name__}: {message}"
    spoken = {"learning rate": "lr", "beta parameter": "betas", "epsilon": "eps", **{name: name for name in node}}
    text = message.lower()[:_NEAR]
    found = [(re.search(rf"\b{re.escape(words)}\b", text), name) for words, name in spoken.items() if name in node]
    first = min(((match.start(), name) for match, name in found if match), default=None)
    return Fault(f"{key}.{first[1]}" if first else key, message)
