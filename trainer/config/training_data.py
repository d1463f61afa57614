"""What is known of the training data before anything of it is read: from classes alone."""

import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import Fault


def kind_of_training_set(node: Mapping[str, Any], allow: tuple[str, ...]) -> type | None:
    """The class of what a data source trains on, as far as classes and annotations tell; None where they do not.

    Args:
        node: The data source's component.
        allow: Packages that the user allows targets from.
    """
    source = resolve_target(node[TARGET], allow)
    if not isinstance(source, type):
        return None
    if _is_map_style(source):
        return source
    train = node.get("train")
    if isinstance(train, Mapping) and TARGET in train:  # a pair of datasets
        target = resolve_target(train[TARGET], allow)
        return target if isinstance(target, type) else None
    member = inspect.getattr_static(source, "train", None)
    getter = (
        member.fget if isinstance(member, property) else member.func if isinstance(member, cached_property) else None
    )
    kind = typing.get_type_hints(getter).get("return") if getter and source.__module__.startswith("gradwire.") else None
    return kind if isinstance(kind, type) else None  # of other sources a subclass may come, or a constructor sets it


def unreadable(node: Mapping[str, Any], allow: tuple[str, ...]) -> Iterator[Fault]:
    """Datasets named in the configuration that can neither be read by index nor bring an order of their own."""
    kinds = {"data.train": kind_of_training_set(node, allow)} if isinstance(node.get("train"), Mapping) else {}
    source = resolve_target(node[TARGET], allow)
    if not kinds and isinstance(source, type) and _only_iterates(source):
        kinds["data"] = source
    for key, kind in kinds.items():
        if kind is not None and not _is_map_style(kind) and not hasattr(kind, "in_order"):
            yield Fault(
                f"{key}.{TARGET}",
                f"{kind.__name__} has no __len__ and __getitem__, which a dataset needs: give it both; for data that "
                "can only be read in order there is data=hf_stream",
            )


def has_length(node: Mapping[str, Any], allow: tuple[str, ...]) -> bool:
    """Whether the training data may have a length: a run can then be counted in epochs."""
    kind = kind_of_training_set(node, allow)
    return kind is None or hasattr(kind, "__len__")


def _is_map_style(kind: type) -> bool:
    return hasattr(kind, "__len__") and hasattr(kind, "__getitem__")


def _only_iterates(kind: type) -> bool:
    from torch.utils.data import IterableDataset

    return issubclass(kind, IterableDataset) and not hasattr(kind, "__len__") and not hasattr(kind, "train")
