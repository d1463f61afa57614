"""Composes a configuration from gradwire's YAML, the user's and overrides, and keeps where each value came from.

Hydra chooses the files (the defaults lists and config groups); values are then set on the tree one by one, so that one
wrong override does not hide the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.fields import fields_of, is_section
from gradwire.trainer.config.interpolation import MISSING, leaves, linked, resolved
from gradwire.trainer.config.names import nearest_key
from gradwire.trainer.config.overrides import Override, apply_values, read_overrides
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.signatures import REQUIRED
from gradwire.trainer.config.sources import Origins, Sources, entangled
from gradwire.trainer.config.tree import Tree, compose_tree


@dataclass(frozen=True)
class Composed:
    """A configuration as it was written; `validate` says whether it can be used.

    Args:
        config: Plain dicts and lists, every interpolation resolved, the root sections' own defaults filled in.
        origins: Where each key was written.
        allow_targets: Packages that the user allows targets from.
        mistakes: What went wrong so far.
        links: Keys whose value is that of another key, by interpolation, and that key.
        notes: What the user should know and need not mend.
        complete: Whether there is a whole configuration to validate.
    """

    config: Mapping[str, Any]
    origins: Origins
    allow_targets: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool = True


def compose(
    overrides: Sequence[str] = (), config_dir: str | Path | None = None, *, module: str = "gradwire.conf"
) -> Composed:
    """Compose the configuration that overrides and the user's folder ask for; mistakes are collected, not raised.

    Args:
        overrides: In Hydra's grammar.
        config_dir: The user's folder of YAML files, searched before gradwire's own.
        module: The package with the primary file and its config groups.
    """
    sources, mistakes = find_sources(config_dir, module)
    chosen, wrong = read_overrides(overrides, sources)
    mistakes += wrong
    tree, wrong = compose_tree([override for override in chosen if override.kind == "group"], sources)
    mistakes += wrong
    if tree is None:
        return Composed({}, Origins(), mistakes=tuple(mistakes), complete=False)
    return finished(tree, [override for override in chosen if override.kind != "group"], mistakes)


def find_sources(config_dir: str | Path | None, module: str) -> tuple[Sources, list[Mistake]]:
    """The folders to search, and a mistake where the user's is not there."""
    if config_dir is None:
        return Sources(module), []
    if not Path(config_dir).is_dir():
        return Sources(module), [Mistake("", "--config-dir", f"there is no folder {config_dir}")]
    sources = Sources(module, Path(config_dir))
    knots = [(file.label, entangled(file.text)) for file in sources.files()]
    if mistakes := [Mistake("", label, message) for label, message in knots if message]:
        return Sources(module), mistakes
    return sources, []


def finished(tree: Tree, overrides: Sequence[Override], mistakes: list[Mistake]) -> Composed:
    """The tree with its defaults filled in, values set and interpolations resolved."""
    from omegaconf import OmegaConf

    config = OmegaConf.merge(defaults_of(Root), tree.node)
    mistakes += apply_values(config, overrides, tree.origins)
    plain, problems = resolved(config)
    links = linked(OmegaConf.to_container(config, resolve=False))
    mistakes += _unresolved(problems, links, dict(leaves(plain)), tree.origins)
    allow = plain.get("allow_targets")
    allowed = tuple(entry for entry in allow if isinstance(entry, str)) if isinstance(allow, list) else ()
    return Composed(plain, tree.origins, allowed, tuple(mistakes), links)


def _unresolved(
    problems: Mapping[str, str], links: Mapping[str, str], values: Mapping[str, Any], origins: Origins
) -> list[Mistake]:
    """A mistake for each interpolation that leads nowhere, but none for those that lead to such a one."""
    mistakes = []
    for key, message in problems.items():
        target = links.get(key, "")
        if (target in problems and target != key) or values.get(target) == MISSING:
            continue
        others = values.keys() - {key}
        suggestion = nearest_key(target, [], others) if target and target not in values else None
        mistakes.append(Mistake(key, origins.of(key), message, suggestion and f"${{{suggestion}}}"))
    return mistakes


def defaults_of(schema: type) -> dict[str, Any]:
    """What a section's dataclass gives where nothing is written; sections within it likewise."""
    filled: dict[str, Any] = {}
    for name, declared in fields_of(schema).items():
        if is_section(declared.annotation):
            filled[name] = defaults_of(declared.annotation)
        elif declared.default is not REQUIRED:
            filled[name] = declared.default
    return filled
