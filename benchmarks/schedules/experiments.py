"""All experiments, by letter."""

from collections.abc import Mapping

from benchmarks.schedules import batch_warmup, critical_batch, growth, linear_scaling, one_update, seesaw
from benchmarks.schedules.results import Experiment

EXPERIMENTS: Mapping[str, Experiment] = {
    "a": linear_scaling.EXPERIMENT,
    "b": growth.IMAGES,
    "b2": growth.BYTES,
    "c": seesaw.EXPERIMENT,
    "d": critical_batch.EXPERIMENT,
    "e": batch_warmup.EXPERIMENT,
    "f": one_update.EXPERIMENT,
}
