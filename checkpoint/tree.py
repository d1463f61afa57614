"""A tree of tensors and plain values as JSON, and back.

Plain JSON stands for itself: null, true, false, strings, whole numbers up to 2**53, lists. What JSON cannot say is an
object with one key:

    {"float": "0.1"}            shortest decimal that reads back to the same bits; "inf", "-inf", "nan"
    {"int": "-0x1fffffffffffffff"}   of at most 1,023 bits, so that each is a finite float too
    {"tuple": [node, …]}
    {"dict": [[key, node], …]}  in order; keys are strings or whole numbers
    {"tensor": index}           into the part's list of tensors
    {"sharded": [[size, …], [[[offset, …], index], …]]}   a tensor in slices: its shape, and where each begins
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from gradwire.checkpoint.document import are_sizes, shown
from gradwire.checkpoint.errors import DamagedCheckpoint, UnsupportedState
from gradwire.checkpoint.sharded import Sharded, Slice
from gradwire.checkpoint.sharded import shown as shown_box

DEEPEST = 64
LONGEST_INT = 1023
_LONGEST_TEXT = len(hex(-(2**LONGEST_INT)))  # longer than any float's
_EXACT = 2**53
StoreTensor = Callable[[str, Tensor | Slice], int]
Path = tuple[str | int, ...]
Begins = list[tuple[tuple[int, ...], int]]
Join = Callable[[Path, tuple[int, ...], Begins], Any]


def encode(tree: Any, store_tensor: StoreTensor, path: str) -> Any:
    """The tree as JSON values.

    Args:
        tree: Dicts, lists and tuples of tensors (or slices of them), numbers, strings, booleans and None.
        store_tensor: Called with each tensor, and each slice of one, and its path; returns the index that stands for
            it.
        path: Name of the tree, for messages.

    Raises:
        UnsupportedState: something else is in it, named by its path.
    """
    return _encode(tree, store_tensor, path, 0)


def _encode(node: Any, store_tensor: StoreTensor, path: str, depth: int) -> Any:
    if depth > DEEPEST:
        raise UnsupportedState(f"{path[:200]} is nested more than {DEEPEST} levels deep")
    if isinstance(node, Tensor):
        return {"tensor": store_tensor(path, node)}
    if isinstance(node, Sharded):
        node.check(path)
        slices = [[list(each.offsets), store_tensor(f"{path}{shown_box(each.box)}", each)] for each in node.slices]
        return {"sharded": [list(node.shape), slices]}
    if isinstance(node, Mapping):
        return {
            "dict": [
                [_encode_key(key, path), _encode(value, store_tensor, f"{path}.{key}", depth + 1)]
                for key, value in node.items()
            ]
        }
    if isinstance(node, list | tuple):
        values = [_encode(value, store_tensor, f"{path}[{index}]", depth + 1) for index, value in enumerate(node)]
        return values if isinstance(node, list) else {"tuple": values}
    return encode_scalar(node, path)


def encode_scalar(value: Any, path: str) -> Any:
    """A number, string, boolean or None as JSON values.

    Raises:
        UnsupportedState: it is something else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if value.bit_length() > LONGEST_INT:
            raise UnsupportedState(
                f"{path} is a whole number of {value.bit_length()} bits: a checkpoint holds those of {LONGEST_INT}"
            )
        return int(value) if -_EXACT <= value <= _EXACT else {"int": hex(value)}
    if isinstance(value, float):
        return {"float": repr(float(value))}
    raise UnsupportedState(
        f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold: it takes "
        "tensors, numbers, strings, booleans, None, and dicts, lists and tuples of them (nothing is pickled)"
    )


def _encode_key(key: Any, path: str) -> str | int:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool) and -_EXACT <= key <= _EXACT:
        return int(key)
    raise UnsupportedState(f"{path} has the key {key!r}: keys must be strings or whole numbers")


def decode(node: Any, tensor: Callable[[int], Tensor], where: str, join: Join | None = None) -> Any:
    """The tree that `node` stands for.

    Args:
        node: JSON values.
        tensor: The tensor of an index.
        where: What is read, for messages.
        join: What stands for a tensor in slices: called with its path, its shape, and where each slice begins with its
            index. None where there must be none.

    Raises:
        DamagedCheckpoint: the node is not one that `encode` makes.
    """

    def refuse(path: Path, *_: Any) -> Any:
        raise DamagedCheckpoint(f"{where}: {dotted(path)} is in slices, which are not expected here")

    return _decode(node, tensor, where, join or refuse, ())


def _decode(node: Any, tensor: Callable[[int], Tensor], where: str, join: Join, path: Path) -> Any:
    if len(path) > DEEPEST:
        raise DamagedCheckpoint(f"{where} is nested more than {DEEPEST} levels deep")
    if isinstance(node, list):
        return [_decode(value, tensor, where, join, (*path, index)) for index, value in enumerate(node)]
    if not isinstance(node, dict) or len(node) != 1:
        return decode_scalar(node, where)
    kind, value = next(iter(node.items()))
    if kind == "tensor" and type(value) is int:
        return tensor(value)
    if kind == "sharded" and isinstance(value, list):
        shape, slices = _slices(value, where)
        return join(path, shape, slices)
    if kind == "tuple" and isinstance(value, list):
        return tuple(_decode(entry, tensor, where, join, (*path, index)) for index, entry in enumerate(value))
    if kind == "dict" and isinstance(value, list):
        return {key: _decode(entry, tensor, where, join, (*path, key)) for key, entry in _pairs(value, where)}
    return decode_scalar(node, where)


def _slices(value: list[Any], where: str) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], int]]]:
    """The shape of a tensor in slices, and of each slice where it begins and its index."""
    shape, slices = value if len(value) == 2 else ([], [])
    sound = len(value) == 2 and isinstance(shape, list) and are_sizes(shape) and isinstance(slices, list)
    if not sound or not all(_is_slice(each) for each in slices):
        raise DamagedCheckpoint(f"{where}: {shown(value)} is not a tensor in slices")
    return tuple(shape), [(tuple(offsets), index) for offsets, index in slices]


def _is_slice(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 2
        and isinstance(entry[0], list)
        and are_sizes(entry[0])
        and type(entry[1]) is int
    )


def _pairs(entries: list[Any], where: str) -> list[tuple[str | int, Any]]:
    pairs = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not _is_key(entry[0]):
            raise DamagedCheckpoint(f"{where}: {shown(entry)} is not an entry of a dict")
        pairs.append((entry[0], entry[1]))
    if len({key for key, _ in pairs}) != len(pairs):
        raise DamagedCheckpoint(f"{where}: a key stands twice in a dict")
    return pairs


def _is_key(value: Any) -> bool:
    return isinstance(value, str) or (type(value) is int and -_EXACT <= value <= _EXACT)


def dotted(path: Path) -> str:
    """A path as messages show it."""
    return ".".join(str(key)[:80] for key in path)


def decode_scalar(node: Any, where: str) -> Any:
    """The number, string, boolean or None that `node` stands for.

    Raises:
        DamagedCheckpoint: it is none that `encode_scalar` makes.
    """
    if node is None or isinstance(node, bool | str):
        return node
    if type(node) is int and -_EXACT <= node <= _EXACT:
        return node
    if isinstance(node, dict) and len(node) == 1:
        kind, text = next(iter(node.items()))
        if isinstance(text, str) and kind in ("float", "int"):
            return _number(kind, text, where)
    raise DamagedCheckpoint(f"{where}: {shown(node)} is not a value")


def _number(kind: str, text: str, where: str) -> int | float:
    if len(text) > _LONGEST_TEXT:
        raise DamagedCheckpoint(f"{where}: {text[:80]!r} is longer than a number may be")
    try:
        value: int | float = float(text) if kind == "float" else int(text, 16)
    except ValueError as error:
        raise DamagedCheckpoint(f"{where}: {text[:80]!r} is not a number") from error
    if isinstance(value, int) and value.bit_length() > LONGEST_INT:
        raise DamagedCheckpoint(f"{where}: {text[:80]!r} has more than {LONGEST_INT} bits")
    if (repr(value) if isinstance(value, float) else hex(value)) != text:
        raise DamagedCheckpoint(f"{where}: {text[:80]!r} is not how that number is written")
    return value


def subtree(node: Any, key: str, where: str) -> Any:
    """The node under a key of a dict's node, or None where it has no such key.

    Raises:
        DamagedCheckpoint: the node is no dict.
    """
    if not isinstance(node, dict) or not isinstance(node.get("dict"), list):
        raise DamagedCheckpoint(f"{where} is not a dict")
    return dict(_pairs(node["dict"], where)).get(key)
