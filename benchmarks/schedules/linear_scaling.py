"""(a) Goyal et al.: the rate in proportion to the batch, with and without warm-up, at eight times the batch."""

from collections.abc import Sequence

from benchmarks.schedules.comparison import ERROR, LOSS, TRAIN_LOSS, Arms, Comparison
from benchmarks.schedules.results import Finding, spread
from benchmarks.schedules.tasks import digits
from benchmarks.schedules.training import Run
from gradwire.schedulers import Plan, Schedule
from gradwire.schedulers.lr import Constant, StepDecay, Warmup
from gradwire.schedulers.scaling import Linear, NoScaling, Scaling

SMALL, LARGE = 8, 64
EPOCHS, WARMUP = 45, 5
DROPS = (15, 30, 40)  # epochs at which the rate falls to a tenth, as Goyal's 30, 60 and 80 of 90

BASE = "small batch"
UNSCALED = "large, rate not scaled"
ABRUPT = "large, scaled, no warm-up"
CONSTANT = "large, scaled, constant warm-up"
GRADUAL = "large, scaled, gradual warm-up"


def arms(lr: float, quick: bool) -> Sequence[Run]:
    """The rows of Goyal's table 1, and the large batch without scaling."""
    share = 0.02 if quick else 1.0
    low = SMALL / LARGE

    def run(name: str, batch: int, schedule: Schedule, scaling: Scaling) -> Run:
        length = f"{EPOCHS * share} epochs"
        plan = Plan(lr=schedule, batch=batch, run_length=length, scaling=scaling, epoch_samples=len(task.train))
        return Run(name, 0, task, plan, "momentum", micro=SMALL)

    task, scaled = digits(), Linear(SMALL)
    warmup = f"{WARMUP * share} epochs"
    return [
        run(BASE, SMALL, _drops(lr, share), NoScaling()),
        run(UNSCALED, LARGE, _drops(lr, share), NoScaling()),
        run(ABRUPT, LARGE, _drops(lr, share), scaled),
        run(CONSTANT, LARGE, _drops(lr, share, low * lr * Constant(warmup)), scaled),
        run(GRADUAL, LARGE, _drops(lr, share, lr * Warmup(warmup, start=low)), scaled),
    ]


def _drops(lr: float, share: float, warmup: Schedule | None = None) -> Schedule:
    """A tenth at each of Goyal's thirds; a warm-up takes the first epochs of the run."""
    spent = WARMUP if warmup else 0
    schedule = lr * StepDecay([f"{(place - spent) * share} epochs" for place in DROPS])
    return warmup.then(schedule) if warmup else schedule


def judge(arms: Arms) -> list[Finding]:
    """Gradual warm-up within the small batch's spread, the others not."""
    findings = []
    for key, name in (("loss", "validation loss"), ("train_loss", "training loss")):
        allowed = spread(arms.values(BASE, key))
        for arm, matches in ((GRADUAL, True), (ABRUPT, False), (CONSTANT, False), (UNSCALED, False)):
            gap = arms.mean(arm, key) - arms.mean(BASE, key)
            found = f"{gap:+.2g} against the small batch, whose spread is {allowed:.2g}"
            claim = f"{arm}: {name} {'matches' if matches else 'does not match'} the small batch"
            findings.append(Finding(claim, found, (gap <= allowed) == matches))
    return findings


EXPERIMENT = Comparison(
    key="a",
    title="Linear scaling with warm-up at eight times the batch",
    source="Goyal et al. 2017, arXiv 1706.02677, table 1",
    about=(
        f"Digits, residual network, SGD with momentum 0.9, {EPOCHS} epochs with the rate divided by ten at 15, 30 and "
        f"40 of them, batch {SMALL} against {LARGE}, warm-up of {WARMUP} epochs. Batch norm sees {SMALL} samples in "
        "every arm (the paper too keeps them the same, at 32). "
        "An arm matches when its mean lies no further above the small batch's than that "
        "one's spread over seeds; with three seeds that is a coarse sieve, as many gaps are about as large as the "
        "spreads. Two settings were tried before this one. With 32 against 256, and so only 159 large updates of 28 % "
        "of an epoch each, nothing scaled matched: validation loss 0.045 ± 0.012 for the small batch, 0.090 ± 0.018 "
        "with gradual warm-up, 0.084 ± 0.017 without. At twice this rate, 0.025, the lowest of the grid then, gradual "
        "warm-up matched and a start at full rate did not: 0.035 ± 0.009, 0.041 ± 0.006, 0.048 ± 0.012."
    ),
    arms=arms,
    grid=(0.00625, 0.0125, 0.025, 0.05, 0.1),
    columns=(LOSS, ERROR, TRAIN_LOSS),
    judge=judge,
)
