"""From OmegaConf's tree to plain dicts and lists, each `${…}` resolved on its own so that all failures show."""

import re
from collections.abc import Callable, Iterator
from typing import Any

UNRESOLVED = object()  # stands where a value could not be had; that was reported already
MISSING = "???"  # OmegaConf's mark for a value that has to be given
_LINK = re.compile(r"\$\{(?:oc\.select:)?(\w[\w.\[\]]*)(?:,[^{}]*)?\}")
_DEPTH = 40  # nesting beyond this is a section that contains itself


def resolved(config: Any) -> tuple[Any, dict[str, str]]:
    """The tree as plain data, and by key what is wrong with every interpolation that leads nowhere."""
    problems: dict[str, str] = {}
    return _plain(config, "", problems, 0), problems


def _plain(node: Any, key: str, problems: dict[str, str], depth: int) -> Any:
    from omegaconf import DictConfig, ListConfig

    if depth > _DEPTH:
        problems[key] = "an interpolation contains itself"
        return UNRESOLVED
    if isinstance(node, DictConfig):
        if node._is_none():
            return None
        return {name: _child(node, name, _join(key, name), problems, depth) for name in node}
    if isinstance(node, ListConfig):
        if node._is_none():
            return None
        return [_child(node, index, f"{key}[{index}]", problems, depth) for index in range(len(node))]
    return node


def _child(node: Any, name: Any, key: str, problems: dict[str, str], depth: int) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        child = MISSING if OmegaConf.is_missing(node, name) else node[name]
    except (OmegaConfBaseException, RecursionError) as error:
        problems[key] = _message(error, OmegaConf.to_container(node, resolve=False), name)
        return UNRESOLVED
    return _plain(child, key, problems, depth + 1)


def _message(error: BaseException, container: Any, name: Any) -> str:
    text = container[name]
    if isinstance(error, RecursionError):
        return f"{text} refers to itself"
    missing = re.search(r"Interpolation key '([^']*)' not found", str(error))
    return f"{text} leads nowhere: no such key" if missing else f"{text}: {str(error).splitlines()[0]}"


def linked(tree: Any) -> dict[str, str]:
    """Of a tree with its interpolations in it, each key whose whole value is that of another key, and that key."""
    matches = {key: _LINK.fullmatch(value) for key, value in leaves(tree) if isinstance(value, str)}
    return {key: match[1] for key, match in matches.items() if match}


def leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a plain tree, dotted from the root, with its value; sections before what is in them."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield _join(key, name), value
            yield from leaves(value, _join(key, name))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield f"{key}[{index}]", value
            yield from leaves(value, f"{key}[{index}]")


def literal(tree: Any) -> Any:
    """A plain tree in which `${` in text is no interpolation, once OmegaConf reads it."""
    return _mapped(tree, lambda text: re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text))


def _mapped(tree: Any, change: Callable[[str], str]) -> Any:
    if isinstance(tree, dict):
        return {name: _mapped(value, change) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_mapped(value, change) for value in tree]
    return change(tree) if isinstance(tree, str) else tree


def _join(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)
