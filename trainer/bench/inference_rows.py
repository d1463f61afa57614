"""What the contest of generation found, as figures and text."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradwire.comm.benchmark.paired import compare
from gradwire.trainer.bench.inference_batching import Batching
from gradwire.trainer.bench.inference_models import (
    COMPILED,
    DYNAMIC,
    OURS,
    STATIC,
    STATIC_COMPILED,
    THEIRS_ON_OURS,
)

Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Row:
    """One contender at one batch size.

    Attributes:
        seconds: Of each round.
        tokens_per_second: The median.
        ours_over: How many times as fast gradwire is, in paired rounds: median and 95 % interval.
        first: Seconds of a first time before the rounds, in which compiled contenders are compiled.
    """

    seconds: tuple[float, ...]
    tokens_per_second: float
    ours_over: Interval
    first: float


@dataclass(frozen=True)
class Growth:
    """How the time of one sequence grows with its length.

    Attributes:
        tokens: The lengths.
        seconds: By length.
        linear: Seconds a token, in seconds = linear·n + quadratic·n², fitted by least squares of relative errors.
        quadratic: Seconds a token squared.
        exponent: p in seconds ∝ nᵖ between the two longest.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    linear: float
    quadratic: float
    exponent: float


def rows(measured: Mapping[str, Sequence[float]], tokens: int, first: Mapping[str, float]) -> dict[str, Row]:
    """A row for every contender, from its seconds for so many tokens."""
    return {
        name: Row(tuple(seconds), tokens / statistics.median(seconds), compare(seconds, measured[OURS]), first[name])
        for name, seconds in measured.items()
    }


def growth(seconds_by_tokens: Mapping[int, float]) -> Growth:
    """Fit the growth over length; neither term below zero."""
    points = sorted(seconds_by_tokens.items())
    # Divided by the measured seconds, each point asks for a·x + b·y = 1.
    design = [(n / seconds, n * n / seconds) for n, seconds in points]
    xx, xy, yy = (sum(row[i] * row[j] for row in design) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(row[i] for row in design) for i in (0, 1))
    determinant = xx * yy - xy * xy
    linear, quadratic = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if linear < 0:
        linear, quadratic = 0.0, y / yy
    elif quadratic < 0:
        linear, quadratic = x / xx, 0.0
    (shorter, less), (longer, more) = points[-2:]
    exponent = math.log(more / less) / math.log(longer / shorter)
    return Growth(tuple(n for n, _ in points), tuple(s for _, s in points), linear, quadratic, exponent)


def contest_lines(batch: int, table: Mapping[str, Row]) -> Iterator[str]:
    """One batch size's table."""
    yield f"\n{f'batch {batch}':32}{'tokens/s':>12}   gradwire is × as fast [95 %]"
    for name, row in table.items():
        yield f"{name:32}{row.tokens_per_second:12,.1f}   {'' if name == OURS else _times(row.ours_over)}"
    if COMPILED in table:
        for own in (name for name in (DYNAMIC, STATIC, STATIC_COMPILED) if name in table):
            yield f"{COMPILED}: × {_times(compare(table[own].seconds, table[COMPILED].seconds))} as fast as {own}"
        firsts = (f"{name} {table[name].first:.0f} s" for name in (COMPILED, STATIC_COMPILED) if name in table)
        yield f"the first time, with compiling: {', '.join(firsts)}"
    if THEIRS_ON_OURS in table:
        for own in (DYNAMIC, STATIC):
            times = _times(compare(table[own].seconds, table[THEIRS_ON_OURS].seconds))
            yield f"transformers' model on gradwire's cache: × {times} as fast as {own}"


def growth_lines(curves: Mapping[str, Growth]) -> Iterator[str]:
    """The curves over length, and what was fitted."""
    lengths = next(iter(curves.values())).tokens
    yield "\n" + f"{'seconds for so many tokens':32}" + "".join(f"{n:>9,}" for n in lengths)
    for name, curve in curves.items():
        fit = f"{1e3 * curve.linear:.3g} ms·n + {1e6 * curve.quadratic:.3g} µs·n², exponent {curve.exponent:.2f}"
        yield f"{name:32}" + "".join(f"{s:>9.2f}" for s in curve.seconds) + f"   {fit}"


def memory_lines(peaks: Mapping[str, int], usable: tuple[float, float]) -> Iterator[str]:
    """Peak memory, and what of a pool can be used."""
    yield "\npeak memory beside the weights"
    for name, peak in peaks.items():
        yield f"{name:32}{peak / 2**20:10.1f} MiB   × {peak / peaks['concatenating']:.2f} of concatenating"
    yield f"usable share of the paged pool under random lengths: {usable[0]:.1%} (least {usable[1]:.1%})"


def batching_line(found: Batching) -> str:
    """Continuous against static batching."""
    return (
        f"\n{found.requests} requests of mixed lengths, {found.rows} at a time: static "
        f"{statistics.median(found.static):,.0f} useful tokens/s, continuous "
        f"{statistics.median(found.continuous):,.0f}, "
        f"× {_times(found.ratio)}; {found.preemptions} preemptions"
    )


def _times(ratio: Interval) -> str:
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]"
