"""A page with every key of the configuration: its meaning, type and default, from schema, signatures and YAML."""

import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]
from mkdocs.structure.files import File, Files

from gradwire.trainer.config.builds import Builds
from gradwire.trainer.config.fields import fields_of, is_section
from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.signatures import REQUIRED, Parameter, parameters
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.config.targets import resolve_target
from gradwire.trainer.config.values import plain, say

_HEAD = """# Configuration

Every key that YAML and the command line can set. This page is made from the code itself; `gradwire config` prints the
same keys with the values of your own configuration, and where each came from. A key without a default has to be given,
by an option of its group or by you.
"""


def on_files(files: Files, config: Any) -> Files:
    """The page stands beside those of the libraries."""
    files.append(File.generated(config, "reference/configuration.md", content=page()))
    return files


def page() -> str:
    """The whole page as Markdown: the keys at the top, the sections, then the groups and what their options build."""
    roots = fields_of(Root)
    single = {name: each for name, each in roots.items() if _section(each) is None}
    parts = [_HEAD, "## At the top\n", _table(single, "")]
    for name, each in roots.items():
        section = _section(each)
        if section is not None:
            parts += [f"## `{name}`\n", f"{each.meaning}\n", _table(fields_of(section), f"{name}.")]
    return "\n".join([*parts, *(part for group in Sources().groups() for part in _group(group))])


def _section(field: Parameter) -> Any:
    """The dataclass of a section; None for a key with a value of its own."""
    members = [plain(field.annotation), *typing.get_args(field.annotation)]
    return next((each for each in members if is_section(each)), None)


def _group(group: str) -> Iterator[str]:
    """A config group: its options, and the keys of each class that they build."""
    texts = {option: Sources().read(f"{group}/{option}") for option in Sources().options(group)}
    place = "@comm.codecs.AXIS" if group == "comm/codec" else ""
    yield f"## Group `{group}`\n"
    yield "| option | what it is |\n|---|---|"
    targets: dict[str, None] = {}
    for option, file in texts.items():
        assert file is not None
        built = list(_targets(yaml.safe_load(file.text)))
        meaning = _comment(file.text) or _summary(resolve_target(built[0]))
        yield f"| `{group}{place}={option}` | {_cell(meaning)} |"
        targets |= dict.fromkeys(built)
    for target in targets:
        component = resolve_target(target)
        own = {name: each for name, each in parameters(component).items() if name not in _supplied()}
        yield f"\n**`{target}`**: {_summary(component)}\n"
        if own:
            yield _table(own, "")
    yield ""


def _summary(component: Any) -> str:
    return (inspect.getdoc(component) or "").partition("\n\n")[0].replace("\n", " ")


def _comment(text: str) -> str:
    """The comment at the head of a file, less the line that tells Hydra its place."""
    lines = [line for line in text.splitlines() if not line.startswith("# @package")]
    head = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.removeprefix("#").strip() for line in head)


def _targets(node: Any) -> Iterator[str]:
    """The names of all classes in a node, outermost first."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield node["_target_"]
        for each in node.values():
            yield from _targets(each)


def _supplied() -> set[str]:
    """Arguments that the program gives wherever it builds a component."""
    sections = [Root, *(section for each in fields_of(Root).values() if (section := _section(each)))]
    marks = [mark for each in sections for field in fields_of(each).values() for mark in _marks(field.annotation)]
    return {name for mark in marks for name in mark.supplied}


def _marks(annotation: Any) -> Iterator[Builds]:
    for each in typing.get_args(annotation):
        if isinstance(each, Builds):
            yield each
        else:
            yield from _marks(each)


def _table(fields: Mapping[str, Parameter], prefix: str) -> str:
    rows = [_row(each, prefix) for each in fields.values() if not _inline(each)]
    return "\n".join(["| key | meaning | value | default |", "|---|---|---|---|", *rows, ""])


def _inline(field: Parameter) -> bool:
    """Whether a field is a component whose keys stand beside the section's own: its group lists them."""
    return any(mark.inline for mark in _marks(field.annotation))


def _row(field: Parameter, prefix: str) -> str:
    written = "" if field.default is REQUIRED else json.dumps(field.default, default=str, ensure_ascii=False)
    default = f"`{written}`".replace("|", "\\|") if written else ""
    return f"| `{prefix}{field.name}` | {_cell(field.meaning)} | {_cell(_said(field.annotation))} | {default} |"


def _said(annotation: Any) -> str:
    return "a component, or components by name" if any(_marks(annotation)) else say(annotation)


def _cell(text: str) -> str:
    """Text in a table: what Markdown would take for markup stands for itself, except between backticks."""
    pieces = text.replace("|", "\\|").replace("\n", " ").split("`")
    pieces[::2] = [re.sub(r"[*_<\[]", r"\\\g<0>", piece) for piece in pieces[::2]]
    return "`".join(pieces)
