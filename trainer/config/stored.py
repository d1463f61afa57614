"""A stored run's configuration, with overrides. It may come from anybody, so it passes the same gate as any other.

What it says is data: interpolations in it are plain text, and its `allow_targets` counts for nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.trainer.config.composition import Composed, find_sources, finished
from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.fields import fields_of, is_section
from gradwire.trainer.config.interpolation import literal
from gradwire.trainer.config.overrides import Override, read_overrides
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.sources import File, Origins, Sources
from gradwire.trainer.config.tree import Tree, compose_tree

_LARGEST = 1_000_000  # bytes; a resolved configuration has some thousands


def load_resolved(
    path: str | Path,
    overrides: Sequence[str] = (),
    config_dir: str | Path | None = None,
    *,
    allow_targets: Sequence[str] = (),
    module: str = "gradwire.conf",
) -> Composed:
    """A stored run's configuration with overrides applied: values, and other options of config groups (`data=text`).

    A group's new option replaces the component that stood in its place; keys of the section itself (`data.workers`,
    `batch.size`) stay unless the option's file sets them to something else than the default option's file does.

    Args:
        path: The run's config.yaml.
        overrides: In Hydra's grammar; `allow_targets=[…]` among them counts.
        config_dir: The user's folder of YAML files, with options of their own.
        allow_targets: Packages that the user allows targets from.
        module: The package with the primary file and its config groups.
    """
    sources, mistakes = find_sources(config_dir, module)
    chosen, wrong = read_overrides(overrides, sources)
    mistakes += wrong
    stored = _read(Path(path))
    if isinstance(stored, Mistake):
        return Composed({}, Origins(), mistakes=(stored, *mistakes), complete=False)
    tree, dropped = stored
    groups = [override for override in chosen if override.kind == "group"]
    mistakes += _swap(tree, groups, sources)
    tree.node["allow_targets"] = list(allow_targets)
    composed = finished(tree, [override for override in chosen if override.kind != "group"], mistakes)
    return _with_notes(composed, dropped, str(path))


def _with_notes(composed: Composed, dropped: Sequence[str], path: str) -> Composed:
    missing = [entry for entry in dropped if entry not in composed.allow_targets]
    if not missing:
        return composed
    note = (
        f"{path} asks to allow targets from {', '.join(missing)}; a stored configuration cannot allow itself anything. "
        f"If you trust them: allow_targets=[{','.join(missing)}]"
    )
    return replace(composed, notes=(*composed.notes, note))


def _read(path: Path) -> tuple[Tree, list[str]] | Mistake:
    """The stored tree with its origins, and the targets that it would allow itself."""
    from omegaconf import OmegaConf
    from omegaconf._utils import get_yaml_loader
    from yaml import AliasEvent, YAMLError, load, parse  # type: ignore[import-untyped]

    try:
        if path.stat().st_size > _LARGEST:
            return Mistake("", str(path), f"larger than {_LARGEST} bytes, which no stored configuration is")
        text = path.read_text(encoding="utf-8")
        if any(isinstance(event, AliasEvent) for event in parse(text)):
            return Mistake("", str(path), "has YAML aliases, which no stored configuration has")
        content = load(text, Loader=get_yaml_loader())
    except (OSError, UnicodeDecodeError) as error:
        return Mistake("", str(path), f"cannot be read: {error}")
    except YAMLError as error:
        return Mistake("", str(path), f"not valid YAML: {error}")
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        return Mistake("", str(path), "is not a configuration: expected sections such as run, model and data")
    allowed = content.pop("allow_targets", None) or []
    origins = Origins()
    origins.record_file(File(str(path), text), "")
    dropped = [entry for entry in allowed if isinstance(entry, str)] if isinstance(allowed, list) else []
    return Tree(OmegaConf.create(literal(content)), origins, {}), dropped


def _swap(tree: Tree, groups: Sequence[Override], sources: Sources) -> list[Mistake]:
    """Put the chosen options of config groups in the place of what the stored tree has there."""
    from omegaconf import OmegaConf

    if not groups:
        return []
    chosen, mistakes = compose_tree(groups, sources)
    default, _ = compose_tree([], sources)
    if chosen is None or default is None:
        return mistakes
    for override in groups:
        package = chosen.packages.get(override.key, override.key.replace("/", "."))
        if not package or package == "_global_":
            message = f"{override.key} changes the whole configuration; a stored run takes single keys and groups"
            mistakes.append(Mistake(override.key, override.place, message))
            continue
        new, old = _plain(chosen.node, package), _plain(default.node, package)
        kept = _kept(package, new, old, _plain(tree.node, package))
        value = {**new, **kept} if isinstance(new, Mapping) else new
        OmegaConf.update(tree.node, package, value, merge=False, force_add=True)
        tree.origins.record(package, override.place)
    return mistakes


def _kept(package: str, new: Any, default: Any, stored: Any) -> dict[str, Any]:
    """The section's own plain keys that the new option leaves as every option has them."""
    section = fields_of(Root).get(package)
    if section is None or not is_section(section.annotation):
        return {}
    if not all(isinstance(part, Mapping) for part in (new, default, stored)):
        return {}
    own = [name for name in fields_of(section.annotation) if name in stored and not isinstance(stored[name], Mapping)]
    return {name: stored[name] for name in own if name not in new or new[name] == default.get(name)}


def _plain(node: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    found = OmegaConf.select(node, key)
    return OmegaConf.to_container(found, resolve=False) if OmegaConf.is_config(found) else found
