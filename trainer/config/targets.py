"""The gate: which names a `_target_` may have, and what they resolve to.

A configuration may come from somebody else (a run folder, a store), so a target is never looked up through attributes
of attributes: the part before the last dot must be a module, the rest a class in it whose own `__module__` is allowed
too. `torch.os.system` and its like therefore lead nowhere, and nothing outside the allowed packages is even imported.
"""

import importlib
import pkgutil
import re
import shlex
import sys
import types
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from gradwire.trainer.config.errors import TargetError
from gradwire.trainer.config.names import nearest

PREFIXES = ("gradwire.", "torch.nn.", "torch.optim.", "transformers.")
_LIBRARIES = ("checkpoint", "comm", "inference", "schedulers", "trainer")  # a namespace does not list what is in it
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def resolve_target(target: object, allow_targets: Iterable[str] = ()) -> Any:
    """The class that `target` names; a function only where `allow_targets` names that very function.

    Args:
        target: Dotted name, module and class.
        allow_targets: Packages, modules or names beyond `PREFIXES` that the user allows.

    Raises:
        TargetError: the name is malformed, not allowed or not there, or is not a class.
    """
    allow_targets = tuple(allow_targets)
    if not isinstance(target, str) or not _NAME.fullmatch(target) or ".__" in f".{target}":
        raise TargetError(f"a target is the dotted name of a class, package.module.Class, found {target!r}")
    if "._" in target and not _allowed(target, allow_targets, ()):
        raise TargetError(f"{target} is private")
    if not _allowed(target, allow_targets):
        raise TargetError(_refusal(target), _corrected_prefix(target, allow_targets))
    module_name, _, name = target.rpartition(".")
    found = getattr(_import(module_name, target, allow_targets), name, None)
    if found is None or isinstance(found, types.ModuleType):
        raise TargetError(f"{module_name} has no class {name}", _nearest_class(module_name, name, allow_targets))
    return _checked(found, target, allow_targets)


def _checked(found: Any, target: str, allow_targets: Collection[str]) -> Any:
    if not isinstance(found, type) and not (isinstance(found, types.FunctionType) and target in allow_targets):
        raise TargetError(
            f"{target} is not a class but {type(found).__name__}; a function can be a target only where allow_targets "
            "names it in full"
        )
    home = f"{found.__module__}.{found.__qualname__}"
    if target not in allow_targets and not _allowed(home, allow_targets):
        raise TargetError(f"{target} is really {home}, which is not allowed")
    return found


def _allowed(name: str, allow_targets: Iterable[str], prefixes: Iterable[str] = PREFIXES) -> bool:
    return any(name == entry or name.startswith(entry.rstrip(".") + ".") for entry in (*prefixes, *allow_targets))


def _refusal(target: str) -> str:
    package = target.partition(".")[0]
    allowed = ", ".join(prefix.rstrip(".") for prefix in PREFIXES)
    refusal = f"{target} lies outside of what a target may name ({allowed}, and what allow_targets lists)"
    if package in sys.stdlib_module_names or package == "torch":
        return refusal
    return f"{refusal}; if it is yours: allow_targets=[{package}] on the command line or in your config folder"


def _import(module_name: str, target: str, allow_targets: Collection[str]) -> types.ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            message = f"importing {module_name} failed: it needs {error.name}, which is not installed"
            raise TargetError(message) from error
        message = f"there is no module {module_name}{_where_to_look(module_name, error.name)}"
        raise TargetError(message, _nearest_module(target, allow_targets)) from error
    except Exception as error:
        raise TargetError(f"importing {module_name} failed: {type(error).__name__}: {error}") from error


def _where_to_look(module_name: str, missing: str | None) -> str:
    """What a user's own file needs to be found: Python looks in the folder of a command, not in the current one."""
    package = module_name.partition(".")[0]
    here = Path.cwd() / package
    if missing != package or not (here.is_dir() or here.with_name(f"{package}.py").is_file()):
        return ""
    return f", but this folder has it: export PYTHONPATH={shlex.quote(str(Path.cwd()))} has Python look here"


def _nearest_class(module_name: str, name: str, allow_targets: Collection[str]) -> str | None:
    module = importlib.import_module(module_name)
    classes = [
        other
        for other, value in vars(module).items()
        if isinstance(value, type) and not other.startswith("_") and _allowed(f"{value.__module__}.", allow_targets)
    ]
    found = nearest(name, classes)
    return f"{module_name}.{found}" if found else None


def _nearest_module(target: str, allow_targets: Collection[str]) -> str | None:
    """Mend the first wrong part of a target's module path, by looking at the submodules that are there."""
    parts = target.split(".")
    for depth in range(len(parts) - 2, 0, -1):
        parent = ".".join(parts[:depth])
        if not _allowed(parent + ".", allow_targets) and not _within(parent, allow_targets):
            return None
        try:
            package = importlib.import_module(parent)
        except ImportError:
            continue
        submodules = [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))]
        submodules += _LIBRARIES if parent == "gradwire" else []
        found = nearest(parts[depth], submodules)
        return _mended([*parts[:depth], found, *parts[depth + 1 :]], allow_targets) if found else None
    return None


def _within(package: str, allow_targets: Collection[str]) -> bool:
    return any(entry.startswith(f"{package}.") for entry in (*PREFIXES, *allow_targets))


def _corrected_prefix(target: str, allow_targets: Collection[str]) -> str | None:
    """Mend a misspelt first or second part, so that `torch.optm.AdamW` finds torch.optim.AdamW."""
    parts = target.split(".")
    for depth in range(min(2, len(parts) - 1)):
        head = parts[:depth]
        prefixes = [entry.rstrip(".").split(".") for entry in (*PREFIXES, *allow_targets)]
        names = {prefix[depth] for prefix in prefixes if len(prefix) > depth and prefix[:depth] == head}
        found = nearest(parts[depth], names)
        if found and found != parts[depth]:
            return _mended([*head, found, *parts[depth + 1 :]], allow_targets)
    return None


def _mended(parts: list[str], allow_targets: Collection[str]) -> str | None:
    """The target once one part of it was mended, if it now leads somewhere or has itself a near one that does."""
    target = ".".join(parts)
    try:
        resolve_target(target, allow_targets)
    except TargetError as error:
        return error.suggestion
    return target
