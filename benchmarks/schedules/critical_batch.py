"""(d) McCandlish et al.: the noise scale predicts the batch size from which on larger ones save few updates."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from benchmarks.schedules.comparison import TUNING_SEED
from benchmarks.schedules.pool import Pool
from benchmarks.schedules.results import Data, Finding, Table, shown
from benchmarks.schedules.tasks import Task
from benchmarks.schedules.training import OPTIMIZERS, Outcome, Run, train
from gradwire.schedulers import Plan
from gradwire.schedulers.noise_scale import NoiseScale
from gradwire.trainer.data.order import Shuffled
from gradwire.trainer.losses import loss_for
from gradwire.trainer.noise import NoiseMeter
from gradwire.trainer.optimizers import set_step

SIZES = (2, 4, 8, 16, 32, 64, 128, 256)
RATE_AT, RATE, FACTORS = 64, 4e-3, (0.5, 1.0, 2.0, 4.0)  # grid around the square-root rule, for every size alike
TARGET = 2.3
MEASURED_AT, MICRO, DECAY = 64, 8, 0.9


@dataclass(frozen=True)
class Scale:
    """How large the experiment is."""

    sizes: Sequence[int] = SIZES
    factors: Sequence[float] = FACTORS
    target: float = TARGET
    samples: int = 12_500  # a run gives up after so many and `updates` updates' worth more
    updates: int = 500


QUICK = Scale((8, 32), (1.0,), 4.5, 500, 60)


@dataclass(frozen=True)
class CriticalBatch:
    """Time to a target loss over batch sizes, against the noise scale measured on the way to it."""

    key: str = "d"
    title: str = "The noise scale as a prediction of the critical batch size"
    source: str = "McCandlish et al. 2018, arXiv 1812.06162, section 2.3"

    def measure(self, seeds: Sequence[int], quick: bool, pool: Pool) -> dict[str, Any]:
        """Tune the rate for each size, run each size with each seed, and measure the noise scale."""
        scale = QUICK if quick else Scale()
        tries = [_run(scale, size, factor, TUNING_SEED) for size in scale.sizes for factor in scale.factors]
        best = _best(pool.map(train, tries), scale)
        runs = [_run(scale, size, best[size], seed) for size in scale.sizes for seed in seeds]
        reached = [_updates_to(scale.target, outcome) for outcome in pool.map(train, runs)]
        measured = [_run(scale, MEASURED_AT, best.get(MEASURED_AT, 1.0), seed) for seed in seeds]
        per_size = [reached[place : place + len(seeds)] for place in range(0, len(reached), len(seeds))]
        return {
            "target": scale.target,
            "rates": {str(size): _rate(size, best[size]) for size in scale.sizes},
            "updates": {str(size): values for size, values in zip(scale.sizes, per_size, strict=True)},
            "noise": pool.map(noise_scales, measured),
        }

    def setting(self, data: Data) -> str:
        """What was run."""
        return (
            "Python source as bytes, decoder of width 32 and one layer, context 32, AdamW at a constant rate, trained "
            f"until the validation loss is {data['target']:g}. For every batch size the best of {len(FACTORS)} rates "
            "around the square-root rule is taken, on another seed. The trade-off curve (S/S_min − 1)(E/E_min − 1) = "
            "1 in updates S and samples E is fitted to each seed; its E_min/S_min is the batch size that costs twice "
            "the fewest updates and twice the fewest samples. The noise scale is measured at a batch of "
            f"{MEASURED_AT} from micro-batches of {MICRO}. Its average over the updates until the target was named as "
            "the prediction before anything was measured, its last value only afterwards."
        )

    def table(self, data: Data) -> Table:
        """Updates and samples to the target by batch size."""
        rows = []
        for size, updates in data["updates"].items():
            samples = [None if count is None else count * int(size) for count in updates]
            rate = f"{data['rates'][size]:.2g}"
            rows.append([size, rate, shown(updates, digits=0), shown(samples, digits=0)])
        return Table(["batch", "learning rate", "updates", "samples"], rows)

    def findings(self, data: Data) -> list[Finding]:
        """The prediction within a factor of two."""
        fits = [_fit(data["updates"], seed) for seed in range(len(data["noise"]))]
        critical = [fit[1] for fit in fits]
        average = [_prediction(trace) for trace in data["noise"]]
        last = [trace[-1][1] for trace in data["noise"]]
        return [
            _within("averaged over the updates until the target (named before measuring)", average, critical),
            _within("when the target is reached (named afterwards)", last, critical),
            Finding("fewest updates S_min of the fit", shown([fit[0] for fit in fits], digits=0)),
            Finding("fewest samples E_min of the fit", shown([fit[0] * fit[1] for fit in fits], digits=0)),
        ]

    def draw(self, data: Data, axes: Axes) -> None:
        """Updates against samples to the target, with the fitted curve and the prediction."""
        sizes = np.array([int(size) for size in data["updates"]], dtype=float)
        updates = np.array([_mean(values) for values in data["updates"].values()])
        axes.loglog(updates, updates * sizes, "o", label="measured")
        fewest, critical = _fit(data["updates"], None)
        fine = np.geomspace(sizes[0], sizes[-1], 100)
        curve = fewest * (1 + critical / fine)
        axes.loglog(curve, curve * fine, label=f"fit: critical batch {critical:.0f}")
        predicted = statistics.fmean(_prediction(trace) for trace in data["noise"])
        place = fewest * (1 + critical / predicted)
        axes.loglog([place], [place * predicted], "*", markersize=12, label=f"noise scale {predicted:.0f}")
        for size, x in zip(data["updates"], updates, strict=True):
            axes.annotate(size, (x, x * int(size)), textcoords="offset points", xytext=(4, 4), fontsize=7)
        axes.set_xlabel("updates to the target")
        axes.set_ylabel("samples to the target")
        axes.legend(fontsize=7)


def noise_scales(run: Run) -> list[list[float]]:
    """(updates, smoothed noise scale in samples) at each update until the run's target."""
    seen: list[list[float]] = []
    updates = _updates_to(run.target or 0.0, train(run)) or run.plan.total_updates
    model, data = run.task.model(run.seed), run.task.train
    loss, optimizer = loss_for(model, None), OPTIMIZERS[run.optimizer](model)
    meter, scale = NoiseMeter({"all": list(model.parameters())}), NoiseScale(DECAY)
    order = Shuffled(len(data), run.seed).locate(np.arange(run.plan.total_samples))
    for clock, step in run.plan.updates():
        if clock.updates >= updates:
            break
        set_step(optimizer, step.lr, step.betas, step.eps)
        optimizer.zero_grad()
        targets = step.batch_size * run.task.context
        for start in range(clock.samples, clock.samples + step.batch_size, MICRO):
            batch = data.gather(order[start : start + MICRO])
            with meter.micro_batch(loss.count(batch)):
                torch.autograd.backward(loss(model, batch) / targets)
        scale.update(meter.norms(meter.local(), meter.big(), step.batch_size, targets)["all"])
        optimizer.step()
        if scale.value is not None:
            seen.append([clock.updates + 1, float(f"{scale.value:.4g}")])
    return seen


def _run(scale: Scale, size: int, factor: float, seed: int) -> Run:
    task = Task("bytes", width=32, context=32)
    length = f"{scale.samples + scale.updates * size} samples"
    plan = Plan(lr=_rate(size, factor), batch=size, run_length=length, context=task.context)
    return Run(f"{size} {factor}", seed, task, plan, "adam", target=scale.target)


def _rate(size: int, factor: float) -> float:
    return RATE * factor * math.sqrt(size / RATE_AT)


def _best(outcomes: Sequence[Outcome], scale: Scale) -> dict[int, float]:
    """The rate's factor with the fewest updates, for each size."""
    best: dict[int, tuple[float, float]] = {}
    for outcome in outcomes:
        size, factor = (float(part) for part in outcome.arm.split())
        updates = _updates_to(scale.target, outcome)
        candidate = (math.inf if updates is None else updates, factor)
        best[int(size)] = min(best.get(int(size), candidate), candidate)
    return {size: factor for size, (_, factor) in best.items()}


def _updates_to(target: float, outcome: Outcome) -> float | None:
    """Updates until the target, interpolated between two looks; None where it was not reached."""
    before = (0, math.inf)
    for _, updates, loss in outcome.curve:
        if loss is None:
            return None
        if loss <= target:
            share = (before[1] - target) / (before[1] - loss) if math.isfinite(before[1]) else 1.0
            return round(before[0] + share * (updates - before[0]), 2)
        before = (updates, loss)
    return None


def _within(when: str, noise: Sequence[float], critical: Sequence[float]) -> Finding:
    ratio = statistics.fmean(noise) / statistics.fmean(critical)
    found = f"{shown(noise, digits=1)} against {shown(critical, digits=1)}: {ratio:.2f} of it"
    claim = f"the noise scale, {when}, predicts the critical batch within a factor of 2"
    return Finding(claim, found, 0.5 <= ratio <= 2)


def _prediction(trace: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(value for _, value in trace)


def _fit(updates: Mapping[str, Sequence[float | None]], seed: int | None) -> tuple[float, float]:
    """S_min and the critical batch of S = S_min·(1 + B_crit/B), by least squares of log S; of one seed or the mean."""
    points = {int(size): _mean(values) if seed is None else values[seed] for size, values in updates.items()}
    sizes = np.array([size for size, count in points.items() if count is not None], dtype=float)
    counts = np.array([count for count in points.values() if count is not None])
    candidates = np.geomspace(0.1, 10_000, 5000)
    shapes = np.log(1 + candidates[:, None] / sizes)
    residuals = np.log(counts) - shapes
    best = int(residuals.var(axis=1).argmin())
    return float(np.exp(residuals[best].mean())), float(candidates[best])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


EXPERIMENT = CriticalBatch()
