"""Hydra's part of composing: which files, in which order, at which place of the tree."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.fields import fields_of
from gradwire.trainer.config.names import nearest
from gradwire.trainer.config.overrides import Override
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.sources import File, Origins, Sources

CONFIG = "config"  # the primary file of a config folder
_HYDRA = "Hydra's own settings have no effect here: take the section out"


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
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf.errors import OmegaConfBaseException
    from yaml import MarkedYAMLError, YAMLError  # type: ignore[import-untyped]

    texts = [override.for_hydra for override in groups]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Hydra warns about what is a mistake of its own here
            loader = _loader(sources)
            node = loader.load_configuration(CONFIG, texts, RunMode.RUN)
            listed = loader.compute_defaults_list(CONFIG, texts, RunMode.RUN)
        node._set_flag(["struct", "readonly"], [False, False])
        node.pop("hydra")
        return _tree(node, listed.defaults, sources)
    except MarkedYAMLError as error:
        return _yaml_mistake(error, sources)
    except YAMLError as error:  # a character that YAML does not have; the file is not named
        reason = " ".join(line.strip() for line in str(error).splitlines())
        return Mistake("", groups[-1].place if groups else "", f"not valid YAML: {reason}")
    except UnicodeDecodeError:
        return Mistake("", sources.undecodable() or "", "not UTF-8 text: save the file as UTF-8")
    except (HydraException, OmegaConfBaseException, ValueError, OSError, TypeError) as error:
        return _hydra_mistake(error, groups, sources)


def _loader(sources: Sources) -> Any:
    """What is behind hydra.compose, without its global state, so that it can be used beside somebody's own Hydra.

    Here the user's folder comes first; `hydra.searchpath` could only add it after ours.
    """
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
    from hydra.core.plugins import Plugins
    from hydra.core.utils import JobRuntime

    Plugins.instance()  # registers the kinds of folder that Hydra can read
    version.setbase("1.3")
    JobRuntime.instance().set("name", "gradwire")
    path = ConfigSearchPathImpl()
    path.append("hydra", "pkg://hydra.conf")
    if sources.folder is not None:
        path.append("user", f"file://{sources.folder.resolve()}")
    path.append("main", f"pkg://{sources.module}")
    path.append("schema", "structured://")
    return ConfigLoaderImpl(path)


def _tree(node: Any, defaults: Sequence[Any], sources: Sources) -> Tree | Mistake:
    origins, packages = Origins(), {}
    for default in defaults:
        file = sources.read(default.config_path)
        if default.config_path.startswith("hydra/") or file is None:
            continue
        if re.search(r"^hydra:", file.text, re.MULTILINE):
            return Mistake("hydra", file.label, _HYDRA)
        if problem := _misplaced(file, default.package):
            return problem
        origins.record_file(file, default.package)
        packages[default.override_key or default.config_path.rpartition("/")[0]] = default.package
    return Tree(node, origins, packages)


def _misplaced(file: File, package: str) -> Mistake | None:
    """What is wrong with a file that holds no keys, or whose keys would stand where the configuration has none."""
    from yaml import MappingNode, SafeLoader, compose

    root = compose(file.text, Loader=SafeLoader)
    if root is not None and not isinstance(root, MappingNode):
        kind = {"sequence": "a list", "scalar": "a text or number"}[root.id]
        return Mistake("", f"{file.label}:{root.start_mark.line + 1}", f"expected KEY: VALUE lines, found {kind}")
    if package and package.partition(".")[0] not in fields_of(Root):
        message = f"its keys would stand under {package}, which has none: begin the file with `# @package _global_`"
        return Mistake("", file.label, message)
    return None


def _yaml_mistake(error: Any, sources: Sources) -> Mistake:
    mark = error.problem_mark or error.context_mark
    place = f"{sources.shown(mark.name)}:{mark.line + 1}" if mark else ""
    context = f" {error.context}" if error.context else ""
    return Mistake("", place, f"not valid YAML: {error.problem}{context}")


def _hydra_mistake(error: Exception, groups: Sequence[Override], sources: Sources) -> Mistake:
    """What an exception of Hydra is about, and which file or override wrote it."""
    text = str(error)
    missing = getattr(error, "missing_cfg_file", None)
    overridden = re.search(r"Could not override '([^']+)'", text)
    if "hydra.searchpath" in text:
        return Mistake("hydra", _parent(text, groups, sources), _HYDRA)
    if missing:
        group, _, option = str(missing).rpartition("/")
        place = _chosen(group, option, groups) or _listed(group, option, sources) or _parent(text, groups, sources)
        suggestion = nearest(option, sources.options(group) if group else [])
        return Mistake(group, place, f"there is no {missing}", suggestion)
    if overridden:
        group = overridden[1]
        place = _listed(group, r"\S+", sources) or _parent(text, groups, sources)
        message = f"{group} is in no defaults list, so its choice has no place"
        homes = ", ".join(_homes(group.partition("@")[0], sources))
        message += f" (places: {homes})" if homes else ""
        return Mistake(group, place, message, None if homes else nearest(group, sources.groups()))
    cause = f": {str(error.__cause__).splitlines()[0]}" if error.__cause__ else ""
    return Mistake("", _parent(text, groups, sources), (text.splitlines() or [type(error).__name__])[0] + cause)


def _chosen(group: str, option: str, groups: Sequence[Override]) -> str:
    """The override that chose an option, if one did."""
    return next((override.place for override in groups if (override.key, override.value) == (group, option)), "")


def _listed(group: str, option: str, sources: Sources) -> str:
    """The line of a defaults list that chooses an option (a pattern), if one does."""
    entry = re.compile(rf"\s*-\s*((override|optional)\s+)*/?{re.escape(group)}\s*:\s*{option}\s*(#.*)?")
    for file in sources.files():
        for number, line in enumerate(file.text.splitlines(), start=1):
            if entry.fullmatch(line):
                return f"{file.label}:{number}"
    return ""


def _homes(group: str, sources: Sources) -> list[str]:
    """The choices beside which a nested group has a place, and what it is called there."""
    parent, _, own = group.rpartition("/")
    entry = re.compile(rf"^\s*-\s*{re.escape(own)}@(\S+?):", re.MULTILINE)
    homes = []
    for option in sources.options(parent) if parent else []:
        file = sources.read(f"{parent}/{option}")
        places = [f"{group}@{parent}.{place}" for place in entry.findall(file.text)] if file else []
        homes += [f"{parent}={option} has {' and '.join(places)}"] if places else []
    return homes


def _parent(text: str, groups: Sequence[Override], sources: Sources) -> str:
    """The file that Hydra was in, or else the last override that was tried."""
    parent = re.match(r"In '([^']+)'", text)
    file = sources.read(parent[1]) if parent else None
    return file.label if file else groups[-1].place if groups else ""
