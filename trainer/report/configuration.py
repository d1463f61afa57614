"""A run's configuration as dotted keys, and where runs differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_LARGEST = 1_000_000  # bytes; a resolved configuration has some thousands


def read_configuration(path: Path) -> tuple[dict[str, str], list[str]]:
    """The values of a config.yaml by dotted key, as text, and what is wrong with it. Nothing in it is instantiated."""
    import yaml  # type: ignore[import-untyped]

    try:
        if path.stat().st_size > _LARGEST:
            return {}, [f"{path.name} is larger than {_LARGEST} bytes, which no stored configuration is"]
        text = path.read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            return {}, [f"{path.name} has YAML aliases, which no stored configuration has"]
        content = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        return {}, [f"{path.name} cannot be read: {error}"]
    if not isinstance(content, Mapping):
        return {}, [f"{path.name} is no configuration: expected sections such as run, model and data"]
    return dict(_flat(content, "")), []


def _flat(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node if isinstance(node, str) else json.dumps(node, default=str, ensure_ascii=False)


def table(configurations: Sequence[Mapping[str, str]]) -> list[tuple[str, tuple[str | None, ...], bool]]:
    """Every key with its value in each run (None where a run lacks it), and whether the runs differ in it."""
    keys = list(dict.fromkeys(key for each in configurations for key in each))
    rows = ((key, tuple(each.get(key) for each in configurations)) for key in keys)
    return [(key, values, len(set(values)) > 1) for key, values in rows]
