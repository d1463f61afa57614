"""Batch-size schedules: factors relative to the full batch.

The plan multiplies them with the full batch and rounds to whole granules: B = max(granule, granule·round(size·factor /
granule)). They look at the start of an update, because they decide where it ends. Sizes that are given beside the full
batch are in samples of the global batch, as that is.
"""

from gradwire.schedulers.batch.staged import Staged
from gradwire.schedulers.batch.steps import Doubling, Ramp
from gradwire.schedulers.batch.warmup import LinearWarmup
from gradwire.schedulers.lr.decays import LinearDecay
from gradwire.schedulers.schedule import Constant

__all__ = ["Constant", "Doubling", "LinearDecay", "LinearWarmup", "Ramp", "Staged"]
