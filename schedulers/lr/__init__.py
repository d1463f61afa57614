"""Learning-rate schedules: factors relative to the peak learning rate.

A rise looks at the end of an update and a fall at its start. In updates of equal size that is (s+1)/W while warming up
and (T−s)/(T−W) while decaying: the first update and the last one have a rate above zero.
"""

from gradwire.schedulers.lr.cycles import OneCycle, WarmupStableDecay
from gradwire.schedulers.lr.decays import (
    Cosine,
    InverseSquareRoot,
    LinearDecay,
    Polynomial,
    QuarterCosine,
    StepDecay,
)
from gradwire.schedulers.lr.named import (
    WarmupConstant,
    WarmupCosine,
    WarmupInverseSquareRoot,
    WarmupLinearDecay,
)
from gradwire.schedulers.lr.warmup import Warmup
from gradwire.schedulers.schedule import Constant

__all__ = [
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "LinearDecay",
    "OneCycle",
    "Polynomial",
    "QuarterCosine",
    "StepDecay",
    "Warmup",
    "WarmupConstant",
    "WarmupCosine",
    "WarmupInverseSquareRoot",
    "WarmupLinearDecay",
    "WarmupStableDecay",
]
