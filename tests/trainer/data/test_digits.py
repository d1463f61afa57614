"""The digits are scikit-learn's, though it is not imported for them."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from sklearn.datasets import load_digits

from gradwire.trainer.data.digits import Digits
from gradwire.trainer.data.errors import DataError


def test_they_are_what_scikit_learn_loads():
    digits, loaded = Digits(validation_fraction=0.0), load_digits()
    assert len(digits.train) == 1797 and digits.validation is None
    images = {(tuple((16 * image).flatten().tolist()), int(label)) for image, label in _rows(digits)}
    assert images == {
        (tuple(image.flatten().tolist()), int(label)) for image, label in zip(loaded.images, loaded.target, strict=True)
    }


def test_scikit_learn_is_not_imported():
    code = (
        "import sys; from gradwire.trainer.data.digits import Digits; Digits().train; print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_scikit_learn_without_them_is_named(monkeypatch, tmp_path):
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(DataError, match=r"has no .*digits\.csv\.gz"):
        Digits()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'gradwire\[digits\]'"):
        Digits()


def _rows(digits: Digits) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(row["image"], row["label"]) for row in map(digits.train.__getitem__, range(len(digits.train)))]
