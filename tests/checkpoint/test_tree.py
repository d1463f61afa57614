import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint, UnsupportedState
from gradwire.checkpoint.document import dump, load, shown
from gradwire.checkpoint.sharded import Sharded, Slice
from gradwire.checkpoint.tree import DEEPEST, decode, decode_scalar, encode, subtree

SCALARS = st.none() | st.booleans() | st.text() | st.integers() | st.floats(allow_nan=False)
KEYS = st.text() | st.integers(-(2**53), 2**53)
TREES = st.recursive(
    SCALARS,
    lambda node: st.lists(node) | st.lists(node).map(tuple) | st.dictionaries(KEYS, node),
    max_leaves=30,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.integers(),
    lambda node: (
        st.lists(node, max_size=4)
        | st.dictionaries(st.sampled_from(["dict", "tuple", "float", "int", "tensor", "x"]), node, max_size=2)
    ),
    max_leaves=20,
)


def no_tensor(*_: object) -> Any:
    raise AssertionError("there is no tensor in this tree")


def through_json(tree: Any) -> Any:
    document = dump({"format": 1, "node": encode(tree, no_tensor, "tree")})
    return decode(load(document, "document").values["node"], no_tensor, "tree")


def types(tree: Any) -> Any:
    """The tree's types, key order and the sign of its zeros, which == does not see."""
    if isinstance(tree, dict):
        return [(type(key), key, types(value)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return [type(tree), *map(types, tree)]
    return (type(tree), math.copysign(1.0, tree)) if isinstance(tree, float) else type(tree)


@given(TREES)
def test_what_is_read_back_is_what_was_written(tree: Any) -> None:
    restored = through_json(tree)
    assert restored == tree
    assert types(restored) == types(tree)


def test_not_a_number_and_infinities_survive() -> None:
    restored = through_json([math.nan, math.inf, -math.inf])
    assert math.isnan(restored[0])
    assert restored[1:] == [math.inf, -math.inf]


def test_tensors_become_indices_in_order() -> None:
    seen: list[str] = []

    def store(path: str, tensor: torch.Tensor) -> int:
        seen.append(path)
        return len(seen) - 1

    node = encode({"a": torch.zeros(1), "b": [torch.ones(1), 3]}, store, "shared")
    assert seen == ["shared.a", "shared.b[0]"]
    assert node == {"dict": [["a", {"tensor": 0}], ["b", [{"tensor": 1}, 3]]]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "shared.x.*builtins.object"),
        ({1, 2}, "shared.x.*builtins.set"),
        (b"raw", "shared.x.*builtins.bytes"),
        (torch.float32, "shared.x.*dtype"),
        ({1.5: 0}, "key 1.5"),
        ({True: 0}, "key True"),
    ],
)
def test_what_cannot_be_held_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(UnsupportedState, match=message):
        encode({"x": value}, no_tensor, "shared")


def test_a_tree_that_contains_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(UnsupportedState, match=f"more than {DEEPEST} levels"):
        encode(tree, no_tensor, "shared")


@given(JSON)
def test_any_other_json_is_damage_or_a_tree_that_encodes_to_itself(node: Any) -> None:
    def tensor(index: int) -> Any:
        raise DamagedCheckpoint(f"there is no tensor {index}")

    try:
        tree = decode(node, tensor, "part")
    except DamagedCheckpoint:
        return
    assert encode(tree, no_tensor, "tree") == node


@pytest.mark.parametrize(
    "node",
    [
        {"float": "1_0.0"},
        {"float": " 1.0"},
        {"float": "1"},
        {"float": "infinity"},
        {"int": "12"},
        {"int": "0x1 "},
        {"dict": [["a", 1], ["a", 2]]},
        {"dict": [[True, 1]]},
        {"dict": [["a"]]},
        {"tuple": 3},
        {"tensor": True},
        {"unknown": 1},
        {"float": "1.0", "int": "0x1"},
        {},
        2**53 + 1,
        {"int": hex(2**1023)},
        {"int": "0x" + "f" * 10**6},
        {"float": "1" * 10**6},
        {"dict": [[2**53 + 1, 1]]},
        {"sharded": [[2**53] * 10**4, []]},
        {"sharded": [[2**50, 2**50], []]},
        {"sharded": [[1], [[[2**57], 0]]]},
    ],
)
def test_values_are_read_in_one_spelling_only(node: Any) -> None:
    with pytest.raises(DamagedCheckpoint):
        decode(node, no_tensor, "part")


def test_deep_nesting_is_damage_and_no_crash() -> None:
    with pytest.raises(DamagedCheckpoint, match="valid document"):
        load(b'{"format":1,"node":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "part")
    deep: Any = 1
    for _ in range(DEEPEST + 2):
        deep = [deep]
    with pytest.raises(DamagedCheckpoint, match="levels deep"):
        decode(deep, no_tensor, "part")


@pytest.mark.parametrize(
    "text",
    ['{"format":1,"format":1}', '{"format":1,"x":NaN}', '{"format":1,"x":1.5}', "[]", '{"x":1}', '{"format":"1"}', "{"],
)
def test_documents_are_strict(text: str) -> None:
    with pytest.raises(DamagedCheckpoint):
        load(text.encode(), "part")


def test_the_deepest_tree_is_a_document_and_the_largest_number_a_float() -> None:
    data = torch.ones(1, 1)
    tree: Any = Sharded((1, 1), (Slice((0, 0), data, 0),))
    for _ in range(DEEPEST):
        tree = {"a": tree}
    node = encode([2**1023 - 1, tree["a"]], lambda path, found: 0, "shared")
    assert load(dump({"format": 1, "node": node}), "part").list("node") == node
    deepest = encode(tree, lambda path, found: 0, "shared")
    assert load(dump({"format": 1, "node": deepest}), "part").values["node"] == deepest
    assert float(decode(node[0], no_tensor, "part")) == 2.0**1023
    with pytest.raises(UnsupportedState, match="a whole number of 1024 bits"):
        encode({"a": -(2**1023)}, no_tensor, "shared")


def test_messages_do_not_walk_what_they_are_about() -> None:
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    assert shown(deep) == "a list of 1 entries"
    assert shown({"a": deep}) == "an object of 1 entries"
    assert shown("x" * 1000) == repr("x" * 80)
    assert shown(10**5000) == "a whole number of 16610 bits"
    with pytest.raises(DamagedCheckpoint, match="is not a value"):
        decode_scalar({"float": deep}, "part")
    with pytest.raises(DamagedCheckpoint, match="nested more than 200"):
        load(b'{"format":1,"node":' + b"[" * 200 + b"]" * 200 + b"}", "part")


def test_a_huge_number_in_a_document_is_damage() -> None:
    with pytest.raises(DamagedCheckpoint, match="larger than a number may be"):
        load(b'{"format":1,"x":%d}' % (2**62 + 1), "part")
    assert load(b'{"format":1,"x":%d}' % -(2**62), "part").values["x"] == -(2**62)
    with pytest.raises(DamagedCheckpoint):
        load(json.dumps({"format": 1}).encode()[:-1] + b',"x":' + b"9" * 10_000 + b"}", "part")


def test_subtree_finds_the_node_of_a_name() -> None:
    node = encode({"model": {"w": 1}, "other": 2}, no_tensor, "shared")
    assert subtree(node, "model", "part") == {"dict": [["w", 1]]}
    assert subtree(node, "absent", "part") is None
    with pytest.raises(DamagedCheckpoint, match="not a dict"):
        subtree([1], "model", "part")
