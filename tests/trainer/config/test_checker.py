from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.schedulers import Duration, Schedule
from gradwire.trainer.config import Measured, Range
from gradwire.trainer.config.checker import Checker
from gradwire.trainer.optimizers import Group

COSINE = {"_target_": "gradwire.schedulers.lr.Cosine"}


@pytest.mark.parametrize(
    ("annotation", "value", "checked"),
    [
        (int, 3, 3),
        (int, 1e3, 1000),
        (float, 3, 3.0),
        (bool, True, True),
        (str, "12", "12"),
        (str | None, None, None),
        (Literal["a", "b"], "b", "b"),
        (int | Literal["auto"], "auto", "auto"),
        (int | float, 3, 3),
        (float | int, 3, 3),
        (list[int], [1, 2.0], [1, 2]),
        (Sequence[str], ["a"], ["a"]),
        (tuple[float, int], [1, 2], [1.0, 2]),
        (tuple[int, ...], [1, 2, 3], [1, 2, 3]),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (Any, {"a": [1, "x"]}, {"a": [1, "x"]}),
        (Path, "a/b", "a/b"),
        (Duration, "3 epochs", "3 epochs"),
        (str | Duration, "10%", "10%"),
        (Annotated[int, Range(ge=1)] | None, 1, 1),
        (Schedule, COSINE, COSINE),
        (Schedule | None, None, None),
        (list[Schedule], [COSINE], [COSINE]),
        (list[Group], [{"pattern": "*", "lr": 1}], [{"pattern": "*", "lr": 1.0}]),
    ],
)
def test_a_right_value_comes_back_as_its_type_wants_it(annotation: Any, value: object, checked: object) -> None:
    result, faults = Checker().value(value, annotation, "key")
    assert faults == []
    assert result == checked
    assert type(result) is type(checked)


@pytest.mark.parametrize(
    ("annotation", "value", "key", "message"),
    [
        (int, True, "key", "expected an integer, found true"),
        (int, "12", "key", "expected an integer, found the text '12'"),
        (int, 1.5, "key", "expected an integer, found 1.5"),
        (int, None, "key", "expected an integer, found null"),
        (int, float("inf"), "key", "expected an integer, found inf"),
        (float, float("nan"), "key", "expected a number, found nan"),
        (float, True, "key", "expected a number, found true"),
        (float | None, "x", "key", "expected a number or null, found the text 'x'"),
        (bool, 1, "key", "expected true or false, found 1"),
        (str, 3, "key", "expected text, found 3"),
        (Literal["a", "b"], "c", "key", "expected one of a, b, found the text 'c'"),
        (Literal[1, 2], True, "key", "expected one of 1, 2, found true"),
        (list[int], 3, "key", "expected a list, each an integer, found 3"),
        (list[int], [1, "x"], "key[1]", "expected an integer, found the text 'x'"),
        (tuple[int, int], [1], "key", "expected a list of 2 values, found a list of 1 values"),
        (tuple[int, int], [1, "x"], "key[1]", "expected an integer, found the text 'x'"),
        (dict[str, int], {"a": "x"}, "key.a", "expected an integer, found the text 'x'"),
        (dict[str, int] | None, {"a": "x"}, "key.a", "expected an integer, found the text 'x'"),
        (dict[str, int], {1: 1}, "key.1", "a key is text, found 1"),
        (Annotated[int, Range(ge=1)], 0, "key", "must be at least 1, found 0"),
        (Annotated[int, Range(ge=1)] | None, 0, "key", "must be at least 1, found 0"),
        (list[Annotated[int, Range(ge=1)]], [0], "key[0]", "must be at least 1, found 0"),
        (Annotated[Duration, Measured("wall-clock")], "3 epochs", "key", "must be wall-clock time"),
        (Duration | None, 3, "key", "'3 updates'"),
        (str | Duration, "3 upochs", "key", "did you mean '3 epochs'?"),
        (Schedule, 3, "key", "expected a component (_target_) that is a Schedule, found 3"),
        (Schedule, {"_target_": "torch.nn.Linear"}, "key._target_", "torch.nn.modules.linear.Linear is not a Schedule"),
        (Schedule, {**COSINE, "flor": 0.1}, "key.flor", "no such key"),
        (Schedule, {**COSINE, "floor": "x"}, "key.floor", "expected a number"),
        (list[Group], [{"lr": 0.1}], "key[0].pattern", "is missing: expected text"),
        (int, COSINE, "key", "expected an integer, found the component gradwire.schedulers.lr.Cosine"),
        (Any, [{"_target_": "os.system"}], "key[0]._target_", "os.system lies outside"),
        (Any, {"a": {"_target_": "os.system"}}, "key.a._target_", "os.system lies outside"),
        (int, "???", "key", "has no value yet: expected an integer"),
    ],
)
def test_a_wrong_value_is_named(annotation: Any, value: object, key: str, message: str) -> None:
    _, faults = Checker().value(value, annotation, "key")
    assert [(fault.key, message in fault.message) for fault in faults] == [(key, True)], faults


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.text() | st.none())
def test_exactly_one_scalar_type_takes_a_value_unchanged(value: object) -> None:
    accepting = [
        kind
        for kind in (int, float, bool, str, None)
        if not (outcome := Checker().value(value, kind, "key"))[1] and type(outcome[0]) is type(value)
    ]
    if value != "???":
        assert accepting == [type(value) if value is not None else None]


def test_all_mistakes_of_a_component_are_found_at_once() -> None:
    node = {"_target_": "torch.nn.Linear", "in_feature": 3, "bias": "no"}
    _, faults = Checker().value(node, Any, "key")
    assert {fault.key for fault in faults} == {"key.in_feature", "key.in_features", "key.out_features", "key.bias"}
