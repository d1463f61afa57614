"""Dividing what there is into a training and a validation part."""

import hashlib
from typing import Any

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.token_file import TokenFile
from gradwire.trainer.data.windows import TokenWindows


def check_context(context: int) -> int:
    """`context`, if it is a number of tokens.

    Raises:
        DataError: it is less than 1.
    """
    if context < 1:
        raise DataError(f"context must be at least 1 token, found {context}")
    return context


def check_fraction(fraction: float) -> float:
    """`fraction`, if it is one for validation.

    Raises:
        DataError: it is negative, or leaves nothing to train on.
    """
    if not 0 <= fraction < 1:
        raise DataError(f"validation_fraction must be at least 0 and less than 1, found {fraction}")
    return fraction


def is_validation(name: str, fraction: float) -> bool:
    """Whether the document of this name belongs to the validation part: a function of the name alone."""
    word = int.from_bytes(hashlib.blake2b(name.encode("utf-8", errors="surrogateescape"), digest_size=8).digest())
    return word < fraction * 2.0**64


def split_tail(file: TokenFile, context: int, fraction: float) -> tuple[TokenWindows, TokenWindows | None]:
    """Windows of a token file: training ones, and validation ones from its last `fraction` (None where that is 0).

    Raises:
        DataError: a part is shorter than one window.
    """
    cut = len(file) - round(len(file) * fraction)
    validation = TokenWindows(file, context, cut) if fraction else None
    return TokenWindows(file, context, 0, cut), validation


def training_set(data: Any) -> Any:
    """What a data source trains on: its `train`, or itself where it is map-style (whatever else it calls `train`)."""
    return data if hasattr(data, "__getitem__") and hasattr(data, "__len__") else getattr(data, "train", data)


def validation_set(data: Any) -> Any:
    """What a data source evaluates on: its `validation`, or None where it has none or is itself a dataset."""
    return None if training_set(data) is data else getattr(data, "validation", None)
