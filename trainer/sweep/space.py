"""The space that a sweep searches, written in Hydra's sweep grammar: in overrides, and under `sweep.space` in YAML."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.trainer.config.errors import Mistake
from gradwire.trainer.config.overrides import place
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.sweep.parameters import Choice, Domain, Interval, Steps

_MOST = 100_000  # values of a range of broken numbers, which are written out
_WHOLE = 2**53  # whole numbers beyond this are no numbers of their own as floats, which is how storages keep them
_OWN = ("run.dir", "run.name", "allow_targets")
_EXAMPLE = "optimizer.lr='tag(log, interval(1e-4, 1e-2))' lr=warmup_cosine,wsd"


@dataclass(frozen=True)
class Parameter:
    """One thing that a sweep varies.

    Args:
        key: What results call it: the key, or the config group.
        name: What an override calls it: the key with `+` or `++` before it, where it was written so.
        domain: Its values.
        written: As the user wrote the values.
        where: Where that was.
    """

    key: str
    name: str
    domain: Domain
    written: str
    where: str

    def override(self, value: Any) -> str:
        """The override that gives the parameter a value."""
        return f"{self.name}={self.domain.text(value)}"


@dataclass(frozen=True)
class Space:
    """All parameters of a sweep, in the order in which they were written.

    Args:
        parameters: At least one, in a sweep that can run.
    """

    parameters: tuple[Parameter, ...]

    def at(self, units: Iterable[float]) -> dict[str, Any]:
        """The values at a point of the unit cube."""
        return {each.key: each.domain.at(unit) for each, unit in zip(self.parameters, units, strict=True)}

    def exact(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that a sampler's answer stands for, in the space's order."""
        return {each.key: each.domain.exact(values[each.key]) for each in self.parameters}

    def overrides(self, values: Mapping[str, Any]) -> list[str]:
        """The overrides that give all parameters their values."""
        return [each.override(values[each.key]) for each in self.parameters]

    def grid_size(self) -> int:
        """Points of the whole grid; for spaces without intervals of real numbers."""
        return math.prod(len(each.domain.points or ()) for each in self.parameters)

    def grid_point(self, number: int) -> dict[str, Any]:
        """A point of the grid; the last parameter changes first."""
        values: dict[str, Any] = {}
        for each in reversed(self.parameters):
            points = each.domain.points or ()
            number, index = divmod(number, len(points))
            values[each.key] = points[index]
        return {each.key: values[each.key] for each in self.parameters}

    def written(self) -> list[list[str]]:
        """What `read` reads back as the same space."""
        return [[each.name, each.written] for each in self.parameters]


def split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides that give one value (or cannot be read, which others report), and those that give several."""
    fixed: list[str] = []
    swept: list[str] = []
    for text in texts:
        parsed = _parsed(text)
        (swept if not isinstance(parsed, Mistake) and parsed.is_sweep_override() else fixed).append(text)
    return fixed, swept


def readable(text: str) -> bool:
    """Whether an override can be read at all."""
    return not isinstance(_parsed(text), Mistake)


def key_of(text: str) -> str:
    """The key or group that an override is about."""
    return text.partition("=")[0].lstrip("+~").partition("@")[0]


def read(
    overrides: Sequence[str], listed: Mapping[str, tuple[Any, str]], sources: Sources
) -> tuple[Space, list[Mistake]]:
    """The space as far as it is right, and what is wrong with it.

    Args:
        overrides: Overrides that give several values; they win over what is listed.
        listed: `sweep.space` of the YAML: by key what stands there, and where.
        sources: The config groups.
    """
    typed = {key_of(text): text for text in overrides}
    outcomes = [_listed(key, value, where, sources) for key, (value, where) in listed.items() if key not in typed]
    outcomes += [_parameter(text, place(text), sources) for text in typed.values()]
    mistakes = [each for each in outcomes if isinstance(each, Mistake)]
    counted = [key_of(text) for text in overrides]
    twice = sorted({key for key in counted if counted.count(key) > 1})
    mistakes += [Mistake(key, "", "is swept by two overrides: write all its values into one") for key in twice]
    if not outcomes:
        message = f"nothing to sweep: give one or more keys several values, such as {_EXAMPLE}"
        mistakes.append(Mistake("sweep.space", "", message))
    return Space(tuple(each for each in outcomes if isinstance(each, Parameter))), mistakes


def restored(written: Sequence[Sequence[str]], sources: Sources) -> tuple[Space, list[Mistake]]:
    """The space that `Space.written` wrote."""
    return read([f"{name}={values}" for name, values in written], {}, sources)


def _parsed(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        return Mistake("", place(text), f"cannot be read ({str(error).splitlines()[0]})")
    except Exception as error:  # the grammar's own functions raise what they like
        return Mistake("", place(text), f"cannot be read: {error}")


def _listed(key: str, value: Any, where: str, sources: Sources) -> Parameter | Mistake:
    """A line of `sweep.space`: a text in the sweep grammar, or a list."""
    if isinstance(value, list):
        from hydra.core.override_parser.types import Override

        value = f"choice({','.join(Override._get_value_element_as_str(each) for each in value)})"
    if not isinstance(value, str):
        message = "expected values such as 'interval(0, 1)', 'choice(a, b)', 'range(8, 33, 8)' or a list"
        return Mistake(f"sweep.space.{key}", where, f"{message}, found {value}")
    return _parameter(f"{key}={value}", where, sources)


def _parameter(text: str, where: str, sources: Sources) -> Parameter | Mistake:
    parsed = _parsed(text)
    if isinstance(parsed, Mistake):
        return Mistake(key_of(text), where, parsed.message)
    key = parsed.key_or_group
    if key in _OWN or key == "sweep" or key.startswith(("sweep.", "sweep/", "hydra.", "hydra/")):
        return Mistake(key, where, "cannot be swept: it belongs to the sweep as a whole")
    if not parsed.is_sweep_override():
        return Mistake(key, where, f"gives one value and a sweep needs several: interval, range, choice or {text},…")
    domain = _domain(parsed, key, sources)
    if isinstance(domain, str):
        return Mistake(key, where, domain)
    name = parsed.get_key_element()
    return Parameter(name.lstrip("+"), name, domain, text.partition("=")[2], where)


def _domain(parsed: Any, key: str, sources: Sources) -> Domain | str:
    """The values that an override gives, or what is wrong with them."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep

    value = parsed.value()
    tags: set[str] = getattr(value, "tags", set())
    if isinstance(parsed._value, Glob):
        options = parsed._value.filter(sources.options(key))
        named = [(name, name) for name in options]
        return _choice(named) if named else f"{parsed.get_value_string()} matches no option of a config group"
    if unknown := sorted(tags - {"log"}):
        return f"there is no tag {unknown[0]}: there is log"
    if isinstance(value, IntervalSweep):
        return _interval(value.start, value.end, "log" in tags)
    if isinstance(value, RangeSweep):
        return _steps(value, "log" in tags)
    if "log" in tags:
        return "choices have no order, so none that is logarithmic: use interval or range"
    return _choice([(parsed._convert_value(each), parsed._get_value_element_as_str(each)) for each in value.list])


def _interval(low: Any, high: Any, log: bool) -> Interval | str:
    if not all(math.isfinite(end) for end in (low, high)):
        return f"an interval needs two finite ends, found {low} and {high}"
    if low >= high:
        return f"is empty: an interval goes up, and {low} is not less than {high}"
    if log and low <= 0:
        return f"a logarithm needs numbers above zero, and the interval begins at {low}"
    if not math.isfinite(high / low if log else high - low):
        return f"the ends {low} and {high} are too far apart to reckon with"
    whole = isinstance(low, int) and isinstance(high, int)
    if whole and max(-low, high) > _WHOLE:
        return f"whole numbers go to {_WHOLE} here, and an end is {high if high > _WHOLE else low}"
    return Interval(low, high, log, whole)


def _steps(value: Any, log: bool) -> Domain | str:
    start, stop, step = value.start, value.stop, value.step
    if step == 0 or not all(math.isfinite(number) for number in (start, stop, step)):
        return f"a range needs finite numbers and a step other than 0, found {start}, {stop} and {step}"
    if (stop - start) / step > _MOST:
        return f"a range of more than {_MOST:,} values: use interval, or int(interval(…))"
    points = sorted(_points(start, stop, step))
    if not points:
        return f"is empty: from {start} no steps of {step} come before {stop}, which is not in it"
    if log and (step != 1 or not isinstance(points[0], int)):
        return "a range with a step has no logarithm: use tag(log, interval(…)) or tag(log, int(interval(…)))"
    if log:
        return _interval(points[0], points[-1], log)
    return Steps(tuple(points)) if len(points) > 1 else _choice([(points[0], repr(points[0]))])


def _points(start: Any, stop: Any, step: Any) -> Sequence[Any]:
    """The numbers of a range: broken ones as they are written, 0.3 for 0.1 + 0.2, and none that is the end."""
    if all(isinstance(number, int) for number in (start, stop, step)):
        return range(start, stop, step)
    count = math.ceil(round((stop - start) / step, 9))
    return [float(f"{start + index * step:.12g}") for index in range(count)]


def _choice(values: Sequence[tuple[Any, str]]) -> Choice | str:
    plain = [value if value is None or isinstance(value, bool | int | float | str) else text for value, text in values]
    texts = [text for _, text in values]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        return f"{twice} is there twice"
    distinct = len(set(plain)) == len(plain)  # 1 and true are two choices, and equal
    return Choice(tuple(plain if distinct else texts), tuple(texts))
