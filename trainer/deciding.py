"""What a run decides by its measurements, and writes into its decision log, so that a resumed one does the same."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gradwire.checkpoint import Commit
from gradwire.schedulers import Step
from gradwire.trainer.communication import TooCoarse
from gradwire.trainer.decisions import ALL_REDUCE, CODEC, MICRO_BATCH, NOISE_SCALE, RECOVERED, Decision
from gradwire.trainer.micro_batch import largest_micro_batch
from gradwire.trainer.rehearsal import Rehearsal

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")


def _decide(trainer: "Trainer", name: str, value: int | float | str, reason: str) -> None:
    clock = trainer.clock
    trainer.decisions.record(Decision(clock.updates, clock.samples, name, value, reason))


def note_choices(trainer: "Trainer") -> None:
    """Write down how gradients are reduced, where that was measured (the strategy's state repeats it)."""
    for choice in trainer.strategy.choices():
        name, way = ALL_REDUCE.format(nbytes=choice.nbytes), str(choice.way)
        decided = trainer.decisions.latest(name)
        if decided is None or decided.value != way:
            _decide(trainer, name, way, choice.reason)


def micro_batch(trainer: "Trainer") -> int:
    """Samples of a pass: the configured size, the one decided before, or the largest that fits. A collective."""
    decided = trainer.decisions.latest(MICRO_BATCH)
    if trainer.settings.micro is not None:
        return trainer.settings.micro
    if decided is not None:
        return int(decided.value)
    share = -(-trainer.plan.largest_batch // trainer.strategy.data_size)
    if trainer.strategy.device.type != "cuda":
        return share
    rehearsal = Rehearsal(trainer)
    size = largest_micro_batch(share, rehearsal.attempt, rehearsal.agree)
    _decide(trainer, MICRO_BATCH, size, f"largest that fits, of a share of {share} samples")
    return size


def follow_noise_scale(trainer: "Trainer", noise_scale: float | None, step: Step) -> bool:
    """Let a plan that measures take in the noise scale, if there is one; whether that changed it.

    Args:
        trainer: Whose plan.
        noise_scale: In samples.
        step: Of the update that was measured.
    """
    plan = None if noise_scale is None else trainer.plan.decide(trainer.clock, noise_scale)
    if noise_scale is None or plan is None:
        return False
    trainer.plan, planned = plan, plan.at(trainer.clock)
    reason = f"batch {step.batch_size} to {planned.batch_size}, lr {step.lr:.4g} to {planned.lr:.4g}"
    _decide(trainer, NOISE_SCALE, noise_scale, f"noise scale: {reason}")
    return True


def fall_back(trainer: "Trainer", found: Iterable[TooCoarse], update: int) -> None:
    """Where a codec loses more than it may, its axis sends bf16 from now on; a resumed run does so too.

    Args:
        trainer: Whose strategy.
        found: The axes, the same on every rank.
        update: The one whose errors these are, counted from 0.
    """
    for each in found:
        reason = f"relative error {each.error:.3g} at update {update}, past {each.tolerance:.3g}"
        _decide(trainer, CODEC.format(axis=each.axis), "bf16", reason)
        trainer.strategy.fall_back(each.axis)
        log.warning(
            "the codec on the axis %s is too coarse for these gradients: %s, the most that it is good for. From "
            "update %d on the axis sends bf16, which takes two bytes a value",
            each.axis,
            reason,
            trainer.clock.updates,
        )


def note_fast_recovery(trainer: "Trainer", base: Commit) -> None:
    """Say that the run goes on with what codecs had lost by a snapshot, not by the update that was replayed last."""
    reason = f"codecs go on with what they had lost by update {base.update}: not the bits of the undisturbed run"
    _decide(trainer, RECOVERED, base.update, reason)
    log.warning("fast recovery at update %d: %s", trainer.clock.updates, reason)
