"""(c) Seesaw: the rate falls by the root of what it would, and the batch grows by the rest."""

from collections.abc import Sequence

from benchmarks.schedules.comparison import LOSS, TRAIN_LOSS, Arms, Comparison
from benchmarks.schedules.results import Finding, signed, spread
from benchmarks.schedules.tasks import Task
from benchmarks.schedules.training import Run
from gradwire.schedulers import Plan
from gradwire.schedulers.coupling import Coupled, Seesaw
from gradwire.schedulers.lr import QuarterCosine, Warmup
from gradwire.schedulers.scaling import NoScaling, Scaling, SquareRoot

START, FULL, FACTOR = 8, 32, 1.1
SAMPLES = 16_000
PLAIN = 12  # a constant batch with about as many updates as Seesaw

BASE = "cosine, constant batch"
SEESAW = "Seesaw"
LARGER = f"cosine, constant batch of {PLAIN}, rate by square root"


def arms(lr: float, quick: bool) -> Sequence[Run]:
    """Cosine, Seesaw on the same cosine, and the plain way to as few updates."""
    task = Task("bytes", width=64, layers=2, context=64)

    def run(name: str, batch: int | Coupled, scaling: Scaling = NoScaling()) -> Run:  # noqa: B008 - frozen
        length = f"{SAMPLES // 30 if quick else SAMPLES} samples"
        schedule = lr * Warmup("5%").then(QuarterCosine())
        plan = Plan(lr=schedule, batch=batch, run_length=length, scaling=scaling, context=task.context)
        return Run(name, 0, task, plan, "adam", evaluations=3 if quick else 12)

    return [
        run(BASE, START),
        run(SEESAW, FULL * Seesaw(START, FACTOR)),
        run(LARGER, PLAIN, SquareRoot(START)),
    ]


def judge(arms: Arms) -> list[Finding]:
    """Within half a per cent of cosine's loss, in a quarter fewer updates."""
    saved, more = arms.saved(SEESAW, BASE), arms.difference(SEESAW, BASE)
    other, plain = arms.saved(LARGER, BASE), arms.difference(LARGER, BASE)
    allowed = spread(arms.values(BASE, "loss")) / arms.mean(BASE, "loss")
    return [
        Finding(f"{SEESAW}: at least 25 % fewer updates", f"{saved:.1%} fewer", saved >= 0.25),
        Finding(
            f"{SEESAW}: cosine's validation loss within 0.5 %",
            f"{signed(more)} (cosine's spread is {100 * allowed:.2f} %)",
            more <= 0.005,
        ),
        Finding(f"{LARGER}: the plain way to as few updates", f"{signed(plain)} in {other:.1%} fewer updates"),
    ]


EXPERIMENT = Comparison(
    key="c",
    title="Seesaw against cosine",
    source="Seesaw 2025, arXiv 2510.14717",
    about=(
        f"Python source as bytes, decoder of width 64 and two layers, context 64, AdamW, {SAMPLES:,} samples, warm-up "
        f"of 5 % and the paper's cosine (a quarter wave to zero). The batch is {START}; Seesaw takes the cosine in "
        f"stairs of {FACTOR} and lets the batch grow to {FULL} at most, which is to stay below the critical batch, as "
        "the paper asks. (Tried first: from 16 to 64, where Seesaw lay 0.79 % above cosine in 30.1 % fewer updates.)"
    ),
    arms=arms,
    grid=(1e-3, 2e-3, 4e-3, 8e-3),
    columns=(LOSS, TRAIN_LOSS),
    judge=judge,
    by_updates=True,
)
