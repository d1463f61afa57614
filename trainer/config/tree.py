"""Hydra's part of composing: which files, in which order, at which place of the tree."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.names import nearest
from gradwire.trainer.config.overrides import Override
from gradwire.trainer.config.sources import Origins, Sources

CONFIG = "config"  # the primary file of a config folder


@dataclass(frozen=True)
class Tree:
    """What Hydra made of the files.

    Args:
        node: OmegaConf's tree.
        origins: Where each key was written.
        packages: Where in the tree each chosen config group stands.
    """

    node: Any
    origins: Origins
    packages: Mapping[str, str]


def compose_tree(groups: Sequence[Override], sources: Sources) -> tuple[Tree | None, list[Mistake]]:
    """Let Hydra compose; where it cannot, without the choices that are at fault, each of which is a mistake.

    Returns:
        The tree, None where not even the defaults compose; and the mistakes.
    """
    whole = _attempt(groups, sources)
    if isinstance(whole, Tree):
        return whole, []
    tree = _attempt([], sources)
    if isinstance(tree, Mistake):
        return None, [tree]
    kept: list[Override] = []
    rejected: dict[str, Mistake] = {}
    while True:  # again while it helps: a choice may need another one that comes later on the command line
        added = 0
        for override in groups:
            if override in kept:
                continue
            outcome = _attempt([*kept, override], sources)
            if isinstance(outcome, Tree):
                tree, added = outcome, added + 1
                kept.append(override)
                rejected.pop(override.text, None)
            else:
                rejected[override.text] = outcome
        if not added:
            return tree, list(rejected.values())


def _attempt(groups: Sequence[Override], sources: Sources) -> Tree | Mistake:
    from hydra import compose
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf.errors import OmegaConfBaseException
    from yaml import MarkedYAMLError  # type: ignore[import-untyped]

    texts = [override.for_hydra for override in groups]
    try:
        with _hydra(sources) as search:
            node = compose(CONFIG, [*search, *texts])
            loader: Any = GlobalHydra.instance().config_loader()
            listed = loader.compute_defaults_list(CONFIG, [*search, *texts], RunMode.RUN)
        return _tree(node, listed.defaults, sources)
    except MarkedYAMLError as error:
        return _yaml_mistake(error, sources)
    except (HydraException, OmegaConfBaseException, ValueError, OSError, TypeError) as error:
        return _hydra_mistake(error, groups, sources)


@contextmanager
def _hydra(sources: Sources) -> Iterator[list[str]]:
    """Hydra, set up for these folders; gives the overrides that complete its search path."""
    from hydra import initialize_config_dir, initialize_config_module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Hydra warns about what is a mistake of its own here
        if sources.folder is None:
            with initialize_config_module(config_module=sources.module, version_base="1.3"):
                yield []
        else:
            with initialize_config_dir(config_dir=str(sources.folder.resolve()), version_base="1.3"):
                yield [f"hydra.searchpath=[pkg://{sources.module}]"]


def _tree(node: Any, defaults: Sequence[Any], sources: Sources) -> Tree | Mistake:
    origins, packages = Origins(), {}
    for default in defaults:
        file = sources.read(default.config_path)
        if default.config_path.startswith("hydra/") or file is None:
            continue
        if re.search(r"^hydra:", file.text, re.MULTILINE):
            return Mistake("hydra", file.label, "Hydra's own settings have no effect here: take the section out")
        origins.record_file(file, default.package)
        packages[default.override_key or default.config_path.rpartition("/")[0]] = default.package
    return Tree(node, origins, packages)


def _yaml_mistake(error: Any, sources: Sources) -> Mistake:
    mark = error.problem_mark or error.context_mark
    place = f"{sources.shown(mark.name)}:{mark.line + 1}" if mark else ""
    context = f" {error.context}" if error.context else ""
    return Mistake("", place, f"not valid YAML: {error.problem}{context}")


def _hydra_mistake(error: Exception, groups: Sequence[Override], sources: Sources) -> Mistake:
    """Name the file or the override that an exception of Hydra is about."""
    text = str(error)
    parent = re.match(r"In '([^']+)'", text)
    missing = getattr(error, "missing_cfg_file", None)
    overridden = re.search(r"Could not override '([^']+)'", text)
    wrong = missing or (overridden and overridden[1])
    if parent and not (missing and _chosen(str(missing), groups)):
        file = sources.read(parent[1])
        place = f"{file.label}:{_line(file.text, str(wrong))}" if file else parent[1]
    else:
        place = groups[-1].place if groups else ""
    if missing:
        group, _, name = str(missing).rpartition("/")
        return Mistake(group, place, f"there is no {missing}", nearest(name, sources.options(group) if group else []))
    if overridden:
        message = f"{overridden[1]} is in no defaults list, so its choice has no place"
        return Mistake(overridden[1], place, message, nearest(overridden[1], sources.groups()))
    cause = f": {str(error.__cause__).splitlines()[0]}" if error.__cause__ else ""
    return Mistake("", place, (text.splitlines() or [type(error).__name__])[0] + cause)


def _chosen(config: str, groups: Sequence[Override]) -> bool:
    return any(f"{override.key}/{override.value}" == config for override in groups)


def _line(text: str, wanted: str) -> int:
    """The line of a file that names an option, or a group, or else the first one."""
    for word in (wanted.rpartition("/")[2], wanted):
        for number, line in enumerate(text.splitlines(), start=1):
            if re.search(rf"(?<![\w/]){re.escape(word)}(?![\w/])", line):
                return number
    return 1
