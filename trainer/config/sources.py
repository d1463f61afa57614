"""The folders that configuration files come from, and where in them each key was written."""

import importlib.resources
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

_LARGEST = 20_000  # entries of a file, aliases written out; real ones have some hundreds


@dataclass(frozen=True)
class File:
    """A configuration file.

    Args:
        label: How messages name it.
        text: What it holds.
    """

    label: str
    text: str


@dataclass(frozen=True)
class Sources:
    """Configuration folders, the first of which wins where several hold a file of the same name.

    Args:
        module: The package with gradwire's own files.
        folder: The user's folder, if any; it comes first.
    """

    module: str = "gradwire.conf"
    folder: Path | None = None

    def _folders(self) -> Iterator[tuple[str, Traversable]]:
        if self.folder is not None:
            yield str(self.folder), self.folder
        yield self.module.rpartition(".")[2], importlib.resources.files(self.module)

    def read(self, name: str) -> File | None:
        """The file of a config such as `data/text`, or None."""
        name = name if name.endswith(".yaml") else f"{name}.yaml"
        for label, folder in self._folders():
            file = folder.joinpath(name)
            if file.is_file():
                return File(f"{label}/{name}", file.read_text(encoding="utf-8"))
        return None

    def files(self) -> Iterator[File]:
        """All files, the user's first."""
        for label, folder in self._folders():
            for name in _names(folder, ""):
                yield File(f"{label}/{name}", folder.joinpath(name).read_bytes().decode("utf-8", errors="replace"))

    def undecodable(self) -> str | None:
        """The label of a file that is not UTF-8 text, if there is one."""
        return next((file.label for file in self.files() if "\ufffd" in file.text), None)

    def is_group(self, name: str) -> bool:
        """Whether a config group of this name exists."""
        return name != "" and any(
            folder.joinpath(name).is_dir() and _options(folder.joinpath(name)) for _, folder in self._folders()
        )

    def options(self, group: str) -> list[str]:
        """The names to choose from in a config group."""
        parts = [folder.joinpath(group) for _, folder in self._folders()]
        return sorted({name for part in parts if part.is_dir() for name in _options(part)})

    def groups(self) -> list[str]:
        """All config groups, nested ones with slashes."""
        return sorted({name for _, folder in self._folders() for name in _groups(folder, "")})

    def shown(self, path: str) -> str:
        """A file's real path as messages name it."""
        if self.folder is not None and path.startswith(str(self.folder.resolve())):
            return str(self.folder / Path(path).relative_to(self.folder.resolve()))
        home = str(importlib.resources.files(self.module))
        return self.module.rpartition(".")[2] + path.removeprefix(home) if path.startswith(home) else path


def _names(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.startswith(("_", ".")):
            yield from _names(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".yaml"):
            yield prefix + entry.name


def _options(folder: Traversable) -> list[str]:
    return [entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")]


def _groups(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.startswith(("_", ".")):
            if _options(entry):
                yield prefix + entry.name
            yield from _groups(entry, f"{prefix}{entry.name}/")


class Origins:
    """Where each key got its value; the last one to write a key is its origin."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._sections: dict[str, str] = {}

    def record(self, key: str, place: str) -> None:
        """`key`, and with it all that was below, now comes from `place`."""
        stale = [known for known in self._places if known.startswith((f"{key}[", f"{key}."))]
        stale += [known for known in self._places if key.startswith(f"{known}.")]
        for known in stale:
            del self._places[known]
        self._places[key] = place

    def record_file(self, file: File, package: str) -> None:
        """The keys of a file, which stands at `package` in the whole."""
        for key, line, is_section in positions(file.text):
            if re.match(r"defaults\b", key):
                continue
            full = f"{package}.{key}" if package else key
            if is_section:
                self._sections[full] = f"{file.label}:{line}"
            else:
                self.record(full, f"{file.label}:{line}")
        if package:
            self._sections.setdefault(package, file.label)

    def of(self, key: str) -> str:
        """Where `key` was written, or else the section or list that it stands in; empty where nobody wrote it."""
        while key:
            if key in self._places or key in self._sections:
                return self._places.get(key) or self._sections[key]
            below = [place for known, place in self._places.items() if known.startswith((f"{key}.", f"{key}["))]
            if below:
                return below[-1]
            key = re.sub(r"(\.[^.\[]+|\[\d+\]|^[^.\[]+)$", "", key)
        return ""

    def exact(self, key: str) -> str:
        """Where `key` itself was written; empty where it was not."""
        return self._places.get(key, "")


def entangled(text: str) -> str | None:
    """What is wrong with a YAML text's aliases: one contains itself, or they come to more than a machine can read."""
    import yaml  # type: ignore[import-untyped]

    if not re.search(r"[&*]\w", text):
        return None
    sizes: dict[int, int] = {}

    def size(node: Any) -> int:
        if id(node) not in sizes:
            sizes[id(node)] = _LARGEST + 1  # found again below itself, it has no end
            parts = node.value if isinstance(node, yaml.CollectionNode) else []
            below = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
            sizes[id(node)] = 1 + sum(map(size, below))
        return sizes[id(node)]

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # told by whoever uses the file
        return None
    if root is None or size(root) <= _LARGEST:
        return None
    return f"its aliases contain themselves, or come to more than {_LARGEST:,} entries: write them out"


def positions(text: str) -> Iterable[tuple[str, int, bool]]:
    """(dotted key, line, whether it is a section) of everything in a YAML text, sections before what is in them."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return list(_positions(root, "")) if root is not None else []


def _positions(node: object, key: str) -> Iterator[tuple[str, int, bool]]:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            full = f"{key}.{name.value}" if key else str(name.value)
            yield full, name.start_mark.line + 1, isinstance(value, yaml.MappingNode) and bool(value.value)
            yield from _positions(value, full)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{key}[{index}]", value.start_mark.line + 1, isinstance(value, yaml.MappingNode)
            yield from _positions(value, f"{key}[{index}]")
