"""All-reduces side by side: what they cost, and whether what they give is right."""

from gradwire.comm.benchmark.contenders import Contender, Shape, contender
from gradwire.comm.benchmark.contest import Contest, Effort, Measured
from gradwire.comm.benchmark.paired import compare, interval
from gradwire.comm.benchmark.rows import Row, faults, rows

__all__ = [
    "Contender",
    "Contest",
    "Effort",
    "Measured",
    "Row",
    "Shape",
    "compare",
    "contender",
    "faults",
    "interval",
    "rows",
]
