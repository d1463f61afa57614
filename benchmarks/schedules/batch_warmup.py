"""(e) A batch that grows over the first part of the run, against the full batch throughout."""

from collections.abc import Sequence

from benchmarks.schedules.comparison import LOSS, Arms, Comparison
from benchmarks.schedules.results import Finding, signed, spread
from benchmarks.schedules.tasks import Task
from benchmarks.schedules.training import Run
from gradwire.schedulers import Plan, Schedule
from gradwire.schedulers.batch import Constant, LinearWarmup
from gradwire.schedulers.lr import WarmupCosine
from gradwire.schedulers.scaling import NoScaling, Scaling, SquareRoot

FULL, GRANULE = 32, 4
SAMPLES = 16_000
LENGTH = "30%"

BASE = "constant batch"
WARMED = "batch warm-up"
SCALED = "batch warm-up, rate by square root"


def arms(lr: float, quick: bool) -> Sequence[Run]:
    """Equal samples, equal learning rate at equal samples; once the rate follows the batch as well."""
    task = Task("bytes", width=64, layers=2, context=64)

    def run(name: str, batch: Schedule, scaling: Scaling) -> Run:
        length = f"{SAMPLES // 30 if quick else SAMPLES} samples"
        schedule = lr * WarmupCosine("10%", floor=0.1)
        plan = Plan(lr=schedule, batch=batch, run_length=length, scaling=scaling, granule=GRANULE, context=task.context)
        return Run(name, 0, task, plan, "adam", evaluations=3 if quick else 12)

    return [
        run(BASE, FULL * Constant(), NoScaling()),
        run(WARMED, FULL * LinearWarmup(LENGTH), NoScaling()),
        run(SCALED, FULL * LinearWarmup(LENGTH), SquareRoot(FULL)),
    ]


def judge(arms: Arms) -> list[Finding]:
    """No loss at equal samples."""
    findings = []
    allowed = spread(arms.values(BASE, "loss")) / arms.mean(BASE, "loss")
    for arm in (WARMED, SCALED):
        more = arms.difference(arm, BASE)
        findings.append(
            Finding(
                f"{arm}: costs no validation loss at equal samples",
                f"{signed(more)} (the constant batch's spread is {100 * allowed:.2f} %) "
                f"in {-arms.saved(arm, BASE):.0%} more updates",
                more <= allowed,
            )
        )
    return findings


EXPERIMENT = Comparison(
    key="e",
    title="Warm-up of the batch size",
    source="Brown et al. 2020, arXiv 2005.14165, appendix B",
    about=(
        f"Python source as bytes, decoder of width 64 and two layers, context 64, AdamW, {SAMPLES:,} samples (a "
        f"million bytes), cosine to a tenth after a warm-up of 10 %. The batch is {FULL}, or rises to it from "
        f"{GRANULE} over the first {LENGTH} of the samples. (Tried first: a full batch of 64, with which the constant "
        "batch does 250 updates and is far from done: there batch warm-up lowers the loss by 21 %.)"
    ),
    arms=arms,
    grid=(2e-3, 4e-3, 8e-3),
    columns=(LOSS,),
    judge=judge,
)
