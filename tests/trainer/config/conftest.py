"""A config module of its own for these tests: small files with every kind of section."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradwire.trainer.config import Composed, compose

FILES = {
    "config.yaml": """
        defaults:
          - model: linear
          - data: numbers
          - loss: null
          - optimizer: adamw
          - batch: constant
          - lr: cosine
          - scaling: none
          - comm: native
          - strategy: single
          - checkpoint: default
          - launch: local
          - _self_
          - experiment: null
        run: {name: test, length: 100 updates}
        clip: 1.0
        allow_targets: [tiny_components]
        """,
    "model/linear.yaml": """
        _target_: torch.nn.Linear
        in_features: 4
        out_features: ${data.context}
        """,
    "model/mlp.yaml": """
        _target_: tiny_components.Mlp
        width: 8
        inner: {_target_: torch.nn.Linear, in_features: 4, out_features: 4}
        """,
    "data/numbers.yaml": """
        _target_: tiny_components.Numbers
        context: 16
        workers: 0
        """,
    "data/letters.yaml": """
        _target_: tiny_components.Letters
        path: somewhere
        """,
    "loss/summed.yaml": "_target_: tiny_components.Summed",
    "optimizer/adamw.yaml": """
        _target_: torch.optim.AdamW
        lr: 0.003
        betas: [0.9, 0.95]
        groups: []
        """,
    "optimizer/sgd.yaml": "{_target_: torch.optim.SGD, lr: 0.1}",
    "batch/base.yaml": "{size: 32, micro: auto, granule: 1}",
    "batch/constant.yaml": """
        defaults: [base, _self_]
        schedule: {_target_: gradwire.schedulers.batch.Constant}
        """,
    "batch/warmup.yaml": """
        defaults: [base, _self_]
        schedule: {_target_: gradwire.schedulers.batch.LinearWarmup, length: 10%}
        """,
    "lr/cosine.yaml": "{_target_: gradwire.schedulers.lr.WarmupCosine, warmup: 10%}",
    "scaling/none.yaml": "_target_: gradwire.schedulers.scaling.NoScaling",
    "comm/native.yaml": "algorithm: native",
    "strategy/single.yaml": "_target_: gradwire.trainer.strategies.Single",
    "strategy/ddp.yaml": "_target_: gradwire.trainer.strategies.DataParallel",
    "checkpoint/default.yaml": "{every: 50 updates, keep: 3}",
    "launch/local.yaml": "{processes: 1, device: cpu}",
    "experiment/wide.yaml": """
        # @package _global_
        defaults:
          - override /model: mlp
        model:
          width: 64
        """,
}

COMPONENTS = '''
"""Components of somebody who uses gradwire."""

from typing import Annotated, Literal, Protocol

from torch import nn

from gradwire.trainer.config.range import Range


class Mlp(nn.Module):
    """A small network.

    Args:
        width: Units of the hidden layer.
        inner: The layer before it.
        activation: Between them.
        shape: Two sizes.
        scale: A factor.
    """

    def __init__(
        self,
        width: Annotated[int, Range(ge=1, le=1024)],
        inner: nn.Module,
        activation: Literal["relu", "gelu"] = "relu",
        shape: tuple[int, int] = (1, 2),
        scale: float | None = None,
    ) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"width must be even, found {width}")
        self.width, self.inner, self.shape, self.scale = width, inner, shape, scale


class Numbers:
    """Counting.

    Args:
        context: Tokens per sample.
    """

    def __init__(self, context: int = 8, names: list[str] | None = None) -> None:
        self.context = context

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> int:
        return index


class Letters(Numbers):
    """Letters.

    Args:
        path: Where they are.
    """

    def __init__(self, path: str, context: int = 8) -> None:
        super().__init__(context)


class Summed:
    """A loss."""

    def count(self, batch: object) -> int:
        return 1

    def __call__(self, model: object, batch: object) -> object:
        return 0.0


class Hidden(nn.Module):
    """Takes anything."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__()


def function(width: int) -> nn.Module:
    return nn.Linear(width, width)
'''


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).strip() + "\n")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder on Python's path with the config module `tiny_conf` and the components `tiny_components`."""
    folder = tmp_path_factory.mktemp("library")
    write_files(folder / "tiny_conf", {**FILES, "__init__.py": ""})
    (folder / "tiny_components.py").write_text(COMPONENTS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("tiny_conf", "tiny_components"):
        sys.modules.pop(name, None)


@pytest.fixture
def tiny(library: Path) -> Callable[..., Composed]:
    """Composes from `tiny_conf`."""

    def run(*overrides: str, config_dir: Path | None = None) -> Composed:
        return compose(overrides, config_dir, module="tiny_conf")

    return run
