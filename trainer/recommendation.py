"""What measurements on a model say about its batch size, learning rate and warm-up, each with its reason."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradwire.schedulers import Constant, Coupling, SchedulerError
from gradwire.schedulers.coupling import BatchRule
from gradwire.schedulers.scaling import Betas, Linear, Scaling, SquareRoot
from gradwire.trainer.rehearsal import Speed
from gradwire.trainer.suited import Arguments, suited

_NEARLY = 0.95  # of the best throughput is as good
_FEWEST_UPDATES = 100  # that a run should keep
_MOST_WARMUP = 0.1  # of the run
_FARTHEST = 6  # doublings from the best batch, where the configured schedule does not take that one


@dataclass(frozen=True)
class Setup:
    """The configured run, as far as it bears on the advice.

    Args:
        batch_size: `batch.size`, samples.
        granule: `batch.granule`, samples.
        world_size: Ranks.
        total_samples: Samples of the run.
        lr: `optimizer.lr`.
        betas: Adam's betas; None where the optimizer is not of its kind.
        scaling: The configured rule; None where there is none (`scaling=none`).
        reference: The rule's own reference batch, in samples; None where it is the full batch.
        has_warmup: Whether the learning-rate schedule has a `warmup`.
        length_in_updates: Whether the run's length is given in updates.
        schedule: The batch schedule, or the coupling.
        measures: Whether batch size or rate are decided by the noise scale while training.
    """

    batch_size: int
    granule: int
    world_size: int
    total_samples: int
    lr: float
    betas: Betas | None
    scaling: Scaling | None
    reference: int | None
    has_warmup: bool
    length_in_updates: bool
    schedule: BatchRule = Constant()  # noqa: RUF009 - frozen
    measures: bool = False

    def first_batch(self, size: int, moved: Arguments) -> int:
        """The first batch of the run where the full one is `size` and these arguments of the schedule have changed."""
        start = moved.get("start", getattr(self.schedule, "start", None))
        return start if isinstance(start, int) else size

    def held_at(self, size: int, moved: Arguments) -> int:
        """The batch at which `optimizer.lr` holds: the full one, but a coupling's first."""
        return self.first_batch(size, moved) if isinstance(self.schedule, Coupling) else size


@dataclass(frozen=True)
class Advice:
    """One value and why.

    Args:
        name: What it is.
        value: The value, for people.
        reason: One sentence.
        overrides: The overrides that set it.
    """

    name: str
    value: str
    reason: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recommendation:
    """What to train with.

    Args:
        micro_batch: Samples in a pass of one rank.
        batch_size: Global batch, in samples.
        lr: Peak learning rate at this batch.
        warmup_updates: Updates of warm-up.
        advice: The same with reasons, in this order.
    """

    micro_batch: int
    batch_size: int
    lr: float
    warmup_updates: int
    advice: tuple[Advice, ...]

    @property
    def overrides(self) -> list[str]:
        """All overrides, to be copied."""
        return [override for advice in self.advice for override in advice.overrides]


def recommend(
    setup: Setup,
    speeds: list[Speed],
    noise_scale: float | None,
    refusal: Callable[[Sequence[str]], str | None] = lambda overrides: None,
) -> Recommendation:
    """The advice for a run: the best of what the other settings go together with.

    Args:
        setup: The run.
        speeds: Throughput by size of micro-batch, at least one.
        noise_scale: In samples; None where it could not be measured.
        refusal: Why a run with these overrides would be refused, None where it would not.
    """
    best, batch = _batch(setup, noise_scale, _fastest(speeds).micro_batch)
    first_reason = None
    for size, moved in _choices(setup, best):
        advice = _advised(
            setup, speeds, batch if size == best else _instead(setup, best, size, first_reason), size, moved
        )
        if (reason := refusal(advice.overrides)) is None:
            return advice
        first_reason = first_reason or reason
    return _kept(setup, best, first_reason or "")


def _choices(setup: Setup, best: int) -> Iterator[tuple[int, Arguments]]:
    """Batches and what they change in the schedule: the best, with nothing moved if that goes, then those around it."""
    yield best, {}
    for doublings in sorted(range(-_FARTHEST, _FARTHEST + 1), key=abs):
        size = best * 2**doublings
        if setup.granule <= size <= setup.total_samples and size % setup.granule == 0:
            moved = suited(setup.schedule, setup.batch_size, int(size), setup.granule)
            if moved or size != best:
                yield int(size), moved
    yield setup.batch_size, {}


def _instead(setup: Setup, best: int, size: int, reason: str | None) -> Advice:
    """The advice for a batch that was taken instead of the best one."""
    return Advice("global batch", _samples(size), f"the nearest to {best:,} that goes: {reason}", _sized(setup, size))


def _advised(setup: Setup, speeds: list[Speed], batch: Advice, size: int, moved: Arguments) -> Recommendation:
    micro_batch, micro = _micro_batch(setup, speeds, size, setup.first_batch(size, moved))
    lr, rate = _learning_rate(setup, size, moved)
    warmup_updates, warmup = _warmup(setup, size, setup.held_at(size, moved))
    schedule = [_schedule(setup, size, moved)] if moved else []
    return Recommendation(micro_batch, size, lr, warmup_updates, (micro, batch, *schedule, rate, warmup))


def _schedule(setup: Setup, size: int, moved: Arguments) -> Advice:
    shown = ", ".join(f"{name}={value}" for name, value in moved.items())
    reason = f"{type(setup.schedule).__name__} moves with the full batch, from {setup.batch_size:,} to {size:,}"
    words = [f"batch.schedule.{name}={_quoted(value)}" for name, value in moved.items()]
    return Advice("batch schedule", shown, reason, tuple(words))


def _quoted(value: str | int) -> str:
    """A value in Hydra's grammar."""
    return f"'{value}'" if isinstance(value, str) else str(value)


def _kept(setup: Setup, best: int, reason: str) -> Recommendation:
    """The configured run, which was accepted."""
    advice = Advice("global batch", _samples(setup.batch_size), f"kept, as {best:,} does not go: {reason}")
    return Recommendation(setup.batch_size, setup.batch_size, setup.lr, 0, (advice,))


def command(typed: Sequence[str], overrides: Sequence[str]) -> str:
    """The line that trains as recommended: what the user typed, with what the recommendation changes at the end."""
    keys = {override.partition("=")[0] for override in overrides}
    kept = [word for word in typed if word.lstrip("+").partition("=")[0] not in keys]
    return shlex.join(["gradwire", "train", *kept, *overrides])


def power_of_two_granules(samples: float, granule: int) -> int:
    """The granule times the power of two that comes nearest, by ratio; at least one granule."""
    return int(granule * 2 ** max(round(math.log2(max(samples, granule) / granule)), 0))


def _batch(setup: Setup, noise_scale: float | None, fast: int) -> tuple[int, Advice]:
    """The power of two nearest the noise scale, between what keeps the ranks busy and what leaves enough updates."""
    name = "global batch"
    if noise_scale is None:
        return setup.batch_size, Advice(name, _samples(setup.batch_size), "kept: no noise scale could be measured")
    kind = "granules times a power of two" if setup.granule > 1 else "the power of two"
    wanted = power_of_two_granules(noise_scale, setup.granule)
    least = power_of_two_granules(fast * setup.world_size, setup.granule)
    most = max(setup.total_samples // _FEWEST_UPDATES, setup.granule)
    chosen = max(wanted, least)
    reason = f"{kind} nearest the noise scale, where updates and samples are each about twice the fewest possible"
    if chosen > wanted:
        reason = (
            f"above the noise scale, because an update of a smaller batch would take as long on {_ranks(setup)}: "
            f"passes of fewer than {_samples(fast)} are slow a sample"
        )
    if chosen > most:
        longer, chosen = chosen, setup.granule * 2 ** int(math.log2(most / setup.granule))
        reason = (
            f"{kind} that leaves the run {_FEWEST_UPDATES} updates of its {setup.total_samples:,} samples: "
            f"a longer run could take {longer:,}"
        )
    return chosen, Advice(name, _samples(chosen), reason, _sized(setup, chosen))


def _sized(setup: Setup, size: int) -> tuple[str, ...]:
    """The overrides for a batch."""
    if setup.length_in_updates and size != setup.batch_size:  # else the run's samples would change with the batch
        return f"batch.size={size}", f"run.length={setup.total_samples} samples"
    return (f"batch.size={size}",)


def _fastest(speeds: list[Speed]) -> Speed:
    """The smallest pass that is nearly as fast a sample as any."""
    best = max(speed.samples_per_second for speed in speeds)
    return next(speed for speed in speeds if speed.samples_per_second >= _NEARLY * best)


def _micro_batch(setup: Setup, speeds: list[Speed], batch_size: int, first: int) -> tuple[int, Advice]:
    fast, share = _fastest(speeds), math.ceil(batch_size / setup.world_size)
    chosen = min(fast.micro_batch, share)
    reached = fast.samples_per_second / max(speed.samples_per_second for speed in speeds)
    reason = f"{reached:.0%} of the best throughput: larger ones cost memory and gain next to nothing"
    if fast is speeds[-1]:
        reason = "the fastest a sample of those that were timed, and the largest"
    if chosen < fast.micro_batch:
        reason = f"a rank's whole share of the global batch; {fast.micro_batch:,} would be faster a sample"
    if setup.measures and setup.world_size == 1 and 2 * chosen > first > 1:
        chosen = first // 2
        reason = f"half of the run's first batch, {first:,}: the noise scale is measured by comparing passes"
    return chosen, Advice("micro-batch", _samples(chosen), reason, (f"batch.micro={chosen}",))


def _learning_rate(setup: Setup, batch_size: int, moved: Arguments) -> tuple[float, Advice]:
    name = "learning rate"
    rule, why = _rule(setup)
    before, held_at = setup.held_at(setup.batch_size, {}), setup.held_at(batch_size, moved)
    if rule.measures:
        reason = f"kept: {type(rule).__name__} multiplies it while training with what the batch is measured to be worth"
        return setup.lr, Advice(name, f"{setup.lr:g}", reason)
    try:
        lr = float(f"{rule.apply(setup.lr, held_at, setup.betas).lr:.4g}")
    except SchedulerError as error:
        return setup.lr, Advice(name, f"{setup.lr:g}", f"left as it is, because scaling refuses: {error}")
    if setup.reference is not None:
        reason = f"{why} makes this of optimizer.lr={setup.lr:g}, which holds at {_samples(setup.reference)}"
        return lr, Advice(name, f"{lr:g}", reason)
    if isinstance(setup.schedule, Coupling) and held_at == before:
        return lr, Advice(name, f"{lr:g}", f"kept: it holds at the first batch, {_samples(before)}, which stays")
    reason = f"{why} from {setup.lr:g} at {_samples(before)}, provided that it was a good rate there"
    return lr, Advice(name, f"{lr:g}", reason, (f"optimizer.lr={lr:g}",) if lr != setup.lr else ())


def _rule(setup: Setup) -> tuple[Scaling, str]:
    """The rule to take from one batch to the other, and its name; it has a reference batch."""
    if setup.scaling is not None:
        return setup.scaling.with_reference(setup.batch_size), f"the configured rule ({type(setup.scaling).__name__})"
    held_at = setup.held_at(setup.batch_size, {})
    if setup.betas is None:
        return Linear(held_at), "a suggestion, as scaling=none: the linear rule for SGD (arXiv 1706.02677)"
    return SquareRoot(held_at), "a suggestion, as scaling=none: the square-root rule for Adam (2205.10287)"


def _warmup(setup: Setup, batch_size: int, early: int) -> tuple[int, Advice]:
    """The warm-up, in updates of the batch that the run has then."""
    updates = math.ceil(setup.total_samples / batch_size)
    most = max(math.floor(_MOST_WARMUP * updates), 1)
    if setup.betas is None:
        wanted, source = math.ceil(updates / 18), "one eighteenth of the run, as 5 epochs of 90 (arXiv 1706.02677)"
    else:
        wanted, source = math.ceil(2 / (1 - setup.betas[1])), "2/(1 − β₂) updates (arXiv 1910.04209)"
    chosen = min(wanted, most)
    reason = source if chosen == wanted else f"a tenth of the run, which is too short for {source}, {wanted:,}"
    # in samples, which every schedule takes: a coupling decides how long an update is
    overrides = (f"lr.warmup={chosen * early} samples",) if setup.has_warmup else ()
    if not overrides:
        reason += "; the configured lr schedule has no warm-up"
    return chosen, Advice("warm-up", f"{chosen:,} {'update' if chosen == 1 else 'updates'}", reason, overrides)


def _samples(count: int) -> str:
    return f"{count:,} {'sample' if count == 1 else 'samples'}"


def _ranks(setup: Setup) -> str:
    return f"{setup.world_size} {'rank' if setup.world_size == 1 else 'ranks'}"
