"""The fields of the schema's dataclasses, with their annotations evaluated."""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any

from gradwire.trainer.config.schema import Root
from gradwire.trainer.config.signatures import REQUIRED, Parameter, documented


def _late_types() -> dict[str, Any]:
    """The types that annotations of the schema name but that need torch; imported when annotations are evaluated."""
    from gradwire.schedulers import Duration
    from gradwire.trainer.optimizers import Group
    from gradwire.trainer.precision import Format
    from gradwire.trainer.sweep.objectives import Constraint, Objective

    sweep = {"Constraint": Constraint, "Objective": Objective}
    return {"Duration": Duration, "Format": Format, "Group": Group, **sweep}


def is_section(annotation: Any) -> bool:
    """Whether an annotation is one of the schema's own dataclasses."""
    return isinstance(annotation, type) and annotation.__module__ == Root.__module__


@functools.cache
def fields_of(schema: type) -> Mapping[str, Parameter]:
    """The fields of a dataclass as parameters."""
    hints = typing.get_type_hints(schema, localns=_late_types(), include_extras=True)
    meanings = documented(schema, hints)
    return {
        each.name: Parameter(each.name, hints[each.name], _default(each), meanings.get(each.name, ""))
        for each in dataclasses.fields(schema)
        if each.init
    }


def _default(declared: "dataclasses.Field[Any]") -> Any:
    if declared.default is not dataclasses.MISSING:
        return declared.default
    return declared.default_factory() if declared.default_factory is not dataclasses.MISSING else REQUIRED
