"""(b, b2) Smith et al.: where the learning rate would fall, the batch grows instead; once with SGD, once with Adam."""

from collections.abc import Sequence

from benchmarks.schedules.comparison import ERROR, LOSS, TRAIN_LOSS, Arms, Comparison
from benchmarks.schedules.results import Finding, spread
from benchmarks.schedules.tasks import Task, digits
from benchmarks.schedules.training import Run
from gradwire.schedulers import Plan, Schedule
from gradwire.schedulers.coupling import Coupled, GrowInsteadOfDecay
from gradwire.schedulers.lr import Constant, StepDecay, Warmup

FACTOR = 4
SMALL, EPOCHS = 16, 40  # digits
SMALL_BYTES, SAMPLES = 8, 16_000  # bytes

BASE = "rate falls"
GROWN = "batch grows instead"
NEITHER = "neither"


def image_arms(lr: float, quick: bool) -> Sequence[Run]:
    """The same stairs, taken by the rate, by the batch, and not at all."""
    task = digits()

    def run(name: str, batch: int | Coupled, schedule: Schedule | float) -> Run:
        length = f"{EPOCHS * (0.04 if quick else 1.0)} epochs"
        plan = Plan(lr=schedule, batch=batch, run_length=length, epoch_samples=len(task.train))
        return Run(name, 0, task, plan, "momentum", micro=SMALL)

    stairs = lr * StepDecay(["50%", "75%"], factor=1 / FACTOR)
    return [
        run(BASE, SMALL, stairs),
        run(GROWN, SMALL * FACTOR**2 * GrowInsteadOfDecay(SMALL, FACTOR), stairs),
        run(NEITHER, SMALL, lr),
    ]


def byte_arms(lr: float, quick: bool) -> Sequence[Run]:
    """The same for the decoder, behind a warm-up of the rate."""
    task = Task("bytes", width=64, layers=2, context=64)

    def run(name: str, batch: int | Coupled, schedule: Schedule) -> Run:
        length = f"{SAMPLES // 30 if quick else SAMPLES} samples"
        plan = Plan(lr=schedule, batch=batch, run_length=length, context=task.context)
        return Run(name, 0, task, plan, "adam", evaluations=3 if quick else 12)

    stairs = lr * Warmup("5%").then(StepDecay(["45%", "70%"], factor=1 / FACTOR))
    return [
        run(BASE, SMALL_BYTES, stairs),
        run(GROWN, SMALL_BYTES * FACTOR**2 * GrowInsteadOfDecay(SMALL_BYTES, FACTOR), stairs),
        run(NEITHER, SMALL_BYTES, lr * Warmup("5%").then(Constant())),
    ]


def judge(arms: Arms) -> list[Finding]:
    """Equal loss in fewer updates; and that the stairs matter at all."""
    saved = arms.saved(GROWN, BASE)
    findings = [Finding(f"{GROWN}: fewer updates", f"{saved:.0%} fewer", saved > 0)]
    for key, name in (("loss", "validation loss"), ("train_loss", "training loss")):
        allowed, other = spread(arms.values(BASE, key)), spread(arms.values(NEITHER, key))
        gap = arms.mean(GROWN, key) - arms.mean(BASE, key)
        found = f"{gap:+.2g} against a falling rate, whose spread is {allowed:.2g}"
        findings.append(Finding(f"{GROWN}: the same {name}", found, abs(gap) <= allowed))
        gap = arms.mean(NEITHER, key) - arms.mean(BASE, key)
        findings.append(
            Finding(
                f"{NEITHER}: a higher {name} by more than its own spread, or the question is idle",
                f"{gap:+.2g}, spread {other:.2g}",
                gap > max(allowed, other),
            )
        )
    return findings


SAME = "Losses are the same when the means differ by no more than the falling rate's spread over seeds."
IMAGES = Comparison(
    key="b",
    title="A growing batch instead of a falling learning rate",
    source="Smith et al. 2018, arXiv 1711.00489, section 4",
    about=(
        f"Digits, residual network, SGD with momentum 0.9, {EPOCHS} epochs of 898 images. After half and three "
        f"quarters of the run either the rate falls to a quarter or the batch grows from {SMALL} to {SMALL * FACTOR} "
        f"and {SMALL * FACTOR**2}. Batch norm sees {SMALL} samples in every arm. {SAME}"
    ),
    arms=image_arms,
    grid=(0.025, 0.05, 0.1, 0.2, 0.4),
    columns=(LOSS, ERROR, TRAIN_LOSS),
    judge=judge,
    by_updates=True,
)
BYTES = Comparison(
    key="b2",
    title="The same with Adam, where the rate has to fall",
    source="Smith et al. 2018, arXiv 1711.00489, section 5",
    about=(
        f"Python source as bytes, decoder of width 64 and two layers, context 64, AdamW, {SAMPLES:,} samples, warm-up "
        "of 5 %. After half and three quarters of the run either the rate falls to a quarter or the batch grows from "
        f"{SMALL_BYTES} to {SMALL_BYTES * FACTOR} and {SMALL_BYTES * FACTOR**2}. {SAME}"
    ),
    arms=byte_arms,
    grid=(1e-3, 2e-3, 4e-3, 8e-3),
    columns=(LOSS, TRAIN_LOSS),
    judge=judge,
    by_updates=True,
)
