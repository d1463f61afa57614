"""TensorBoard where it is not installed."""

import sys

import pytest

from gradwire.trainer.loggers import TensorBoard
from gradwire.trainer.loggers.tensorboard import TensorBoardMissingError


def test_where_it_is_not_installed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(TensorBoardMissingError, match=r"pip install 'gradwire\[tensorboard\]'"):
        TensorBoard()
