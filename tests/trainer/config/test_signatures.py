from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.trainer.config import TargetError
from gradwire.trainer.config.signatures import REQUIRED, parameters
from gradwire.trainer.config.targets import resolve_target


class Documented:
    """Something.

    Args:
        first: What comes first,
            over two lines.
        second (int, optional): What comes second.
    """

    def __init__(self, first: int, second: "int | None" = None, third: "NotThere" = 3) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_parameters_carry_type_default_and_meaning() -> None:
    first, second, third = parameters(Documented).values()
    assert (first.annotation, first.default, first.meaning) == (int, REQUIRED, "What comes first, over two lines.")
    assert (second.annotation, second.default, second.meaning) == (int | None, None, "What comes second.")
    assert (third.annotation, third.default) == (Any, 3)


def test_torch_optimizers_can_be_read() -> None:
    known = parameters(torch.optim.AdamW)
    assert list(known)[:3] == ["params", "lr", "betas"]
    assert known["lr"].default == 1e-3
    assert "learning rate" in known["lr"].meaning


@pytest.mark.parametrize("name", ["Hidden"])
def test_hidden_arguments_are_refused(library: Path, name: str) -> None:
    with pytest.raises(TargetError, match=r"hides its arguments behind \*\*kwargs"):
        parameters(resolve_target(f"tiny_components.{name}", ["tiny_components"]))


def test_arguments_without_names_are_refused() -> None:
    with pytest.raises(TargetError, match="without names"):
        parameters(torch.nn.Sequential)
