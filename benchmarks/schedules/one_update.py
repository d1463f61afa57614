"""(f) One update of 256 samples against 256 updates of one: the step in theory and as it is, and where it leads."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.schedules.comparison import rounded
from benchmarks.schedules.pool import Pool
from benchmarks.schedules.results import Data, Finding, Table, mean, shown
from benchmarks.schedules.tasks import Task
from benchmarks.schedules.training import Run, train, updates
from gradwire.schedulers import Plan
from gradwire.schedulers.scaling import Linear
from gradwire.trainer.data.order import Ordinals
from gradwire.trainer.losses import loss_for

TASK = Task("bytes", width=32, context=32)
KAPPA = 256
RATES = (1e-5, 1e-4, 1e-3, 1e-2)
SMALL, PLAIN, SCALED = "256 updates of 1", "1 update of 256", "1 update of 256, rate × 256"


@dataclass(frozen=True)
class Job:
    """Steps from one point in weight space, found by a short training.

    Args:
        seed: Of the point and of the draws.
        rates: Learning rates of an update of one sample.
        draws: How many times 256 samples are drawn.
        batches: Batches of 256 from which the theory takes the mean gradient, and 16 times as many single samples
            for its variance.
    """

    seed: int
    rates: Sequence[float]
    draws: int
    batches: int


@dataclass(frozen=True)
class OneUpdate:
    """Expectation and variance of the step, and the loss that each way of going reaches."""

    key: str = "f"
    title: str = "One update of 256 against 256 updates of one"
    source: str = "Goyal et al. 2017, arXiv 1706.02677, section 2.1"

    def measure(self, seeds: Sequence[int], quick: bool, pool: Pool) -> dict[str, Any]:
        """Draw steps from a point for each seed, then train each way."""
        rates = RATES[1:2] if quick else RATES
        jobs = [Job(seed, rates, 3 if quick else 40, 4 if quick else 60) for seed in seeds]
        steps = pool.map(step_statistics, jobs)
        runs = [run for rate in rates for arm in _arms(rate, 1 if quick else 30) for run in _seeded(arm, seeds)]
        outcomes = pool.map(train, runs)
        arms: dict[str, Any] = {}
        for run, outcome in zip(runs, outcomes, strict=True):
            arm = arms.setdefault(run.arm, {"updates": run.plan.total_updates, "runs": []})
            arm["runs"].append(rounded(outcome))
        return {"rates": list(rates), "steps": steps, "arms": arms}

    def setting(self, data: Data) -> str:
        """What was run."""
        samples = data["arms"][_name(data["rates"][0], SMALL)]["updates"]
        return (
            "Python source as bytes, decoder of width 32 and one layer, context 32, plain SGD. Steps are drawn from "
            "the point that 200 updates of AdamW lead to: the theory takes the gradient g from 15,360 other samples "
            "at that point and the trace of its covariance Σ from 960 single ones, and predicts, to first order in "
            "the rate η, an expected step of 256·η·g and a variance of 256·η²·tr Σ for 256 updates of one sample and "
            "for one update of 256 at 256·η alike. Expectations are along −g. The losses are those of training from "
            f"scratch on {samples:,} samples."
        )

    def table(self, data: Data) -> Table:
        """Steps over theory, and losses."""
        rows = []
        for rate in data["rates"]:
            for arm in (SMALL, PLAIN, SCALED):
                key = _name(rate, arm)
                steps = [statistics[key] for statistics in data["steps"]]
                expectation = shown([step["expectation"] for step in steps], digits=4)
                variance = _scientific([step["variance"] for step in steps])
                losses = [run["loss"] for run in data["arms"][key]["runs"]]
                rows.append([f"{rate:g}", arm, expectation, variance, shown(losses)])
        return Table(["rate η", "way", "expected step ÷ theory", "variance ÷ theory", "validation loss reached"], rows)

    def findings(self, data: Data) -> list[Finding]:
        """Theory within ten per cent, and losses with and without scaling, for each rate."""
        findings = []
        for rate in data["rates"]:
            for arm in (SCALED, SMALL):
                steps = [statistics[_name(rate, arm)] for statistics in data["steps"]]
                ratios = [mean([step[figure] for step in steps]) for figure in ("expectation", "variance")]
                found = f"expectation {ratios[0]:.3f}, variance {ratios[1]:.3f} of it"
                holds = all(abs(ratio - 1) <= 0.1 for ratio in ratios)
                findings.append(Finding(f"η = {rate:g}, {arm}: the step is the theory's within 10 %", found, holds))
            findings += [_loss_finding(data, rate, arm, matches) for arm, matches in ((SCALED, True), (PLAIN, False))]
        return findings

    def draw(self, data: Data, axes: Axes) -> None:
        """Loss reached over the rate, for each way."""
        for arm, style in ((SMALL, "o-"), (PLAIN, "s-"), (SCALED, "^-")):
            losses = [mean([run["loss"] for run in data["arms"][_name(r, arm)]["runs"]]) for r in data["rates"]]
            axes.semilogx(data["rates"], losses, style, label=arm)
        axes.set_xlabel("rate η of an update of one sample")
        axes.set_ylabel("validation loss reached")
        axes.legend(fontsize=7)


def step_statistics(job: Job) -> dict[str, dict[str, float]]:
    """Expectation and variance of the steps over those of first-order theory, for each rate and way."""
    model, data = _point(job.seed), TASK.train
    generator = np.random.default_rng(job.seed)
    gradient, square, trace = _theory(model, data, generator.integers(len(data), size=(job.batches, KAPPA)))
    chosen = generator.integers(len(data), size=(job.draws, KAPPA))
    big = torch.stack([-_gradient(model, data, draw) for draw in chosen])
    answer = {}
    for rate in job.rates:
        walked = torch.stack([_walk(model, data, draw, rate) for draw in chosen])
        for arm, steps in ((SMALL, walked), (PLAIN, rate * big), (SCALED, KAPPA * rate * big)):
            expected = float(-(steps.mean(0) @ gradient) / (KAPPA * rate * square))
            variance = float(steps.var(0).sum() / (KAPPA * rate**2 * trace))
            answer[_name(rate, arm)] = {"expectation": float(f"{expected:.5g}"), "variance": float(f"{variance:.5g}")}
    return answer


def _point(seed: int) -> nn.Module:
    model = TASK.model(seed)
    for _ in updates(Run("", seed, TASK, Plan(lr=4e-3, batch=64, run_length="200 updates"), "adam"), model):
        pass
    return model


def _theory(model: nn.Module, data: Any, chosen: Ordinals) -> tuple[Tensor, float, float]:
    """The mean gradient g over all chosen samples, and unbiased |g|² and tr Σ."""
    average = torch.stack([_gradient(model, data, batch) for batch in chosen]).mean(0)
    singles = (_gradient(model, data, np.array([index])) for index in chosen[:, :16].flat)
    squares = [float(single @ single) for single in singles]
    trace = float(np.mean(squares)) - float(average @ average)
    return average, float(average @ average) - trace / chosen.size, trace


def _gradient(model: nn.Module, data: Any, chosen: Ordinals) -> Tensor:
    loss, batch = loss_for(model, None), data.gather(chosen)
    gradients = torch.autograd.grad(loss(model, batch) / loss.count(batch), list(model.parameters()))
    return parameters_to_vector(gradients)


def _walk(model: nn.Module, data: Any, chosen: Ordinals, rate: float) -> Tensor:
    """The sum of 256 updates of one sample each; the model stays where it was."""
    origin = parameters_to_vector(model.parameters()).detach().clone()
    loss, parameters = loss_for(model, None), list[Tensor](model.parameters())
    batch = data.gather(chosen)
    for place in range(len(chosen)):
        single = {name: values[place : place + 1] for name, values in batch.items()}
        gradients = torch.autograd.grad(loss(model, single) / TASK.context, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-rate)
    step = parameters_to_vector(parameters).detach() - origin
    vector_to_parameters(origin, parameters)
    return step


def _arms(rate: float, large: int) -> list[Run]:
    """The three ways over as many samples as `large` updates of 256 take."""
    length = f"{large * KAPPA} samples"

    def run(arm: str, plan: Plan) -> Run:
        return Run(_name(rate, arm), 0, TASK, plan, "sgd", evaluations=5)

    return [
        run(SMALL, Plan(lr=rate, batch=1, run_length=length)),
        run(PLAIN, Plan(lr=rate, batch=KAPPA, run_length=length)),
        run(SCALED, Plan(lr=rate, batch=KAPPA, run_length=length, scaling=Linear(1))),
    ]


def _seeded(run: Run, seeds: Sequence[int]) -> list[Run]:
    return [dataclasses.replace(run, seed=seed) for seed in seeds]


def _name(rate: float, arm: str) -> str:
    return f"{rate:g}: {arm}"


def _loss_finding(data: Data, rate: float, arm: str, matches: bool) -> Finding:
    def reached(way: str) -> float:
        return mean([run["loss"] for run in data["arms"][_name(rate, way)]["runs"]])

    more = reached(arm) / reached(SMALL) - 1
    claim = f"η = {rate:g}, {arm}: the loss of 256 updates of 1 within 1 %"
    found = f"{100 * more:+.2f} %" if math.isfinite(more) else "diverged"
    holds = math.isfinite(more) and abs(more) <= 0.01
    return Finding(claim if matches else claim.replace("the loss", "not the loss"), found, holds == matches)


def _scientific(values: Sequence[float]) -> str:
    average = mean(values)
    return f"{average:.2e}" if average < 0.01 else shown(values)


EXPERIMENT = OneUpdate()
