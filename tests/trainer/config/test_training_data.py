"""What classes alone tell of the training data is told before a run begins."""

from pathlib import Path
from typing import Any

import pytest

from gradwire.trainer.config.fit import refused_plan
from gradwire.trainer.config.training_data import has_length, kind_of_training_set, unreadable

CLASSES = """
from torch.utils.data import Dataset, IterableDataset
class NoLength:
    def __getitem__(self, index): ...
class MapStyle(NoLength):
    def __len__(self): return 8
class Ordered:
    def in_order(self, seed): ...
class Iterated(IterableDataset):
    def __iter__(self): ...
class Source:
    def __init__(self): self.train = MapStyle()
class Annotated:
    @property
    def train(self) -> Dataset: return MapStyle()
"""
PAIR = "gradwire.trainer.data.Pair"
ALLOW = ("classes_of_data",)


@pytest.fixture(autouse=True)
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "classes_of_data.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(str(tmp_path))


def node(name: str, *, pair: bool = False) -> dict[str, Any]:
    own = {"_target_": f"classes_of_data.{name}"}
    return {"_target_": PAIR, "train": own} if pair else own


def test_a_dataset_without_a_length_is_refused_where_it_is_named() -> None:
    for name in ("NoLength", "Iterated"):
        [fault] = unreadable(node(name, pair=True), ALLOW)
        assert fault.key == "data.train._target_" and f"{name} has no __len__" in fault.message
    [fault] = unreadable(node("Iterated"), ALLOW)
    assert fault.key == "data._target_"


@pytest.mark.parametrize(
    "data",
    [node("MapStyle"), node("Ordered"), node("Source"), node("Annotated"), node("MapStyle", pair=True),
     node("Ordered", pair=True), {"_target_": "gradwire.trainer.data.Digits"},
     {"_target_": "gradwire.trainer.data.HuggingFaceStream", "path": "x"}],
)  # fmt: skip
def test_nothing_is_refused_that_may_turn_out_right(data: dict[str, Any]) -> None:
    assert list(unreadable(data, ALLOW)) == []


def test_a_stream_is_known_to_have_no_length() -> None:
    stream = {"_target_": "gradwire.trainer.data.HuggingFaceStream", "path": "x"}
    kind = kind_of_training_set(stream, ())
    assert kind is not None and kind.__name__ == "StreamedWindows" and not has_length(stream, ())
    assert has_length({"_target_": "gradwire.trainer.data.Digits"}, ())
    assert not has_length(node("Ordered", pair=True), ALLOW)
    assert has_length(node("Source"), ALLOW) and has_length(node("Annotated"), ALLOW)


@pytest.mark.parametrize(
    ("length", "warmup", "key"), [("2 epochs", "10%", "run.length"), ("64 samples", "1 epoch", "lr.warmup")]
)
def test_epochs_of_a_stream_are_refused_before_the_run(length: str, warmup: str, key: str) -> None:
    config = {
        "data": {"_target_": "gradwire.trainer.data.HuggingFaceStream", "path": "x"},
        "run": {"length": length},
        "lr": {"_target_": "gradwire.schedulers.lr.WarmupCosine", "warmup": warmup},
        "batch": {"size": 4, "granule": 1, "schedule": {"_target_": "gradwire.schedulers.batch.Constant"}},
        "scaling": {"_target_": "gradwire.schedulers.scaling.NoScaling"},
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
    }
    [fault] = refused_plan(config, ())
    assert fault.key == key and "does not know its length" in fault.message
    assert list(refused_plan(config | {"data": {"_target_": "gradwire.trainer.data.Digits"}}, ())) == []
