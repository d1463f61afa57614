"""What a trainer is told beside its objects, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradwire.schedulers import Clock, Duration
from gradwire.trainer.precision import Format

Status = Literal["done", "preempted"]


@dataclass(frozen=True)
class Settings:
    """How a run is trained, beside its model, data, optimizer and plan.

    Args:
        seed: Every random choice is a function of this and the clock.
        precision: Number format of forward and backward.
        micro: Most samples in one forward pass of one rank; None takes what fits: a rank's whole share, on a GPU halved
            until it fits into memory.
        few_shapes: Whether passes have few sizes (full micro-batches and powers of two) while the batch size changes:
            for models that are compiled.
        workers: Data-loading processes a rank; 0 loads in the training process.
        clip: Largest gradient norm; None does not clip.
        ema: Decay of the moving average of the weights; evaluation then uses the average. None keeps none.
        non_finite: What a gradient with NaN or infinity does: end the run, or be left out and counted.
        log_every: Updates between lines of metrics.
        evaluate_every: Between evaluations; None evaluates never.
        evaluation_batch: Samples in an evaluation batch.
        evaluation_limit: Validation samples to use; None uses all.
        save_every: Between snapshots (any unit, wall clock too); None saves at the end only.
        journal: Whether every update is journalled between snapshots, and durable before the next (`update`), or within
            `journal_interval`.
        journal_interval: Seconds between two writes of the journal with `interval`.
        recovery: Where ranks carry over what no journal tells (what codecs lost): `exact` keeps none, and the run goes
            on from the newest snapshot in the bits of the undisturbed one; `fast` goes on from the last journalled
            update, with what they carried over at the snapshot.
        recover_within: Seconds that recovery may take: a snapshot is saved when the journal has become too long for it.
        check_replicas_every: Between comparisons of the ranks' weights, bit by bit; None compares never.
        noise_scale_every: Between measurements of the gradient noise scale; None where only the plan may need it.
        noise_scale_decay: Weight that the past keeps in its averages at each measurement.
        max_time: Wall-clock seconds after which the run saves and stops as if preempted.
        stop_at: Where the run evaluates, saves and stops as if preempted; None is the end of the plan.
    """

    seed: int = 0
    precision: Format = "fp32"
    micro: int | None = None
    few_shapes: bool = False
    workers: int = 0
    clip: float | None = None
    ema: float | None = None
    non_finite: Literal["raise", "skip"] = "raise"
    log_every: int = 10
    evaluate_every: Duration | None = None
    evaluation_batch: int = 32
    evaluation_limit: int | None = None
    save_every: Duration | None = None
    journal: Literal["update", "interval"] | None = None
    journal_interval: float = 5.0
    recovery: Literal["exact", "fast"] = "exact"
    recover_within: float | None = None
    check_replicas_every: Duration | None = None
    noise_scale_every: Duration | None = None
    noise_scale_decay: float = 0.95
    max_time: float | None = None
    stop_at: Duration | None = None


@dataclass(frozen=True)
class Run:
    """What names a run for its loggers.

    Args:
        name: Shown name.
        directory: Where the run's files are; None for a run that writes none.
        config: The resolved configuration.
    """

    name: str = "run"
    directory: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Args:
        status: `done`, or `preempted` when it was asked to stop and has saved.
        clock: Samples, tokens and updates at the end.
        record: The last measured values by name.
    """

    status: Status
    clock: Clock
    record: Mapping[str, float | int | str]
