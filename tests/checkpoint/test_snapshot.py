import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.checkpoint import DamagedCheckpoint, UnsupportedFormat
from gradwire.checkpoint.document import dump
from gradwire.checkpoint.loading import load_tree
from gradwire.checkpoint.snapshot import (
    Part,
    PartRef,
    PartWriter,
    local_places,
    parse_part,
    read_part,
    shared_places,
)
from gradwire.checkpoint.store import Store, content_name
from tests.checkpoint.states import same

SHARED = {"model": {"w": torch.arange(6.0), "b": torch.zeros(2)}, "lr": 0.5}
LOCAL = {"residual": torch.ones(3)}


def a_part() -> tuple[Store, dict[str, Any]]:
    store = Store.open("memory://part")
    ref = PartWriter(store, 0).write(SHARED, LOCAL)
    return store, json.loads(store.get(ref.name, ref.size))


def read_all(store: Store, part: Part) -> Any:
    trees = [(shared_places([part], "part"), part.shared), (local_places(part), part.local)]
    return [load_tree(store, places, node, "part") for places, node in trees if node is not None]


def altered(document: dict[str, Any], path: list[Any], value: Any) -> bytes:
    copy = json.loads(json.dumps(document))
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return dump(copy)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, child in children for place in [(*path, key), *places(child, (*path, key))]]


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from(
        [2**40, 2**70, -(2**70), "", "../../etc/passwd", "/etc/passwd", "0" * 64, "float32", [], {}, [[]]]
    )
    | st.sampled_from([{"tensor": 0}, {"tensor": 99}, {"tensor": -1}, {"dict": [["a", 1]]}, {"float": "nan"}])
)


@given(st.data())
def test_any_value_anywhere_in_a_part_is_damage_or_a_tree(data: st.DataObject) -> None:
    store, document = a_part()
    place = data.draw(st.sampled_from(places(document)))
    changed = altered(document, list(place), data.draw(VALUES))
    try:
        trees = read_all(store, parse_part(changed, "part"))
    except (DamagedCheckpoint, UnsupportedFormat):
        return
    assert all(isinstance(tree, dict | list | tuple | str | int | float | bool | torch.Tensor) for tree in trees)


def test_a_part_is_read_back_as_it_was_written() -> None:
    store, document = a_part()
    shared, local = read_all(store, parse_part(dump(document), "part"))
    assert torch.equal(shared["model"]["w"], SHARED["model"]["w"])  # type: ignore[index]
    assert local["residual"].tolist() == [1.0, 1.0, 1.0]


def test_no_tensor_is_used_twice() -> None:
    store, document = a_part()
    twice = {"dict": [["a", {"tensor": 0}], ["b", {"tensor": 0}]]}
    with pytest.raises(DamagedCheckpoint, match="used twice"):
        read_all(store, parse_part(altered(document, ["shared"], twice), "part"))


def test_a_part_of_another_rank_is_damage(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    ref = PartWriter(store, 1).write(None, LOCAL)
    assert read_part(store, ref).shared is None
    with pytest.raises(DamagedCheckpoint, match="is of rank 1, and the commit says rank 0"):
        read_part(store, PartRef(0, ref.digest, ref.size))


def test_a_part_of_a_later_format_is_refused(tmp_path: Path) -> None:
    data = dump({"format": 2, "kind": "part"})
    store = Store.open(str(tmp_path))
    store.put_content("parts", data, content_name(data))
    with pytest.raises(UnsupportedFormat, match="install a newer gradwire"):
        read_part(store, PartRef(0, content_name(data), len(data)))


def test_numbers_of_shared_tensors_rise_and_are_in_one_part_only() -> None:
    store, document = a_part()
    assert document["shared_tensors"] == [0, 1]
    for wrong in ([1, 0], [0, 0], [-1, 0], [True, 2], [0, 1, 2, 3], "01"):
        with pytest.raises(DamagedCheckpoint, match="shared_tensors"):
            parse_part(altered(document, ["shared_tensors"], wrong), "part")
    part = parse_part(dump(document), "part")
    with pytest.raises(DamagedCheckpoint, match="tensor 0 of the shared state is in two parts"):
        shared_places([part, part], "update 3")
    alone = parse_part(altered(document, ["shared_tensors"], [1]), "part")
    with pytest.raises(DamagedCheckpoint, match="tensor 0 does not exist"):
        load_tree(store, shared_places([alone], "part"), alone.shared, "part")


def test_own_tensors_and_shared_ones_are_not_mixed_up() -> None:
    store, document = a_part()
    for tree, number in (("local", 1), ("shared", 2)):
        moved = {"dict": [["a", {"tensor": number}]]}
        with pytest.raises(DamagedCheckpoint, match=f"tensor {number} does not exist"):
            read_all(store, parse_part(altered(document, [tree], moved), "part"))


def test_each_rank_writes_what_it_owns_and_the_tree_stands_in_the_first_part() -> None:
    store = Store.open("memory://owned")
    refs = [PartWriter(store, rank).write(SHARED, LOCAL, owners=[1, 0]) for rank in range(2)]
    parts = [read_part(store, ref) for ref in refs]
    assert [part.shared_tensors for part in parts] == [(1,), (0,)]
    assert [part.shared is None for part in parts] == [False, True]
    loaded = load_tree(store, shared_places(parts, "update 1"), parts[0].shared, "update 1")
    assert same(loaded, SHARED)
    assert all(same(load_tree(store, local_places(part), part.local, "part"), LOCAL) for part in parts)
