"""One training run: a lean loop around a plan, so that runs of thousands of tiny updates take seconds."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from benchmarks.schedules.tasks import Task, evaluate, indices
from gradwire.schedulers import Clock, Plan
from gradwire.trainer.data.order import Ordinals, Shuffled
from gradwire.trainer.losses import Loss, loss_for
from gradwire.trainer.optimizers import set_step

OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.0),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4),
    "adam": lambda model: torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0),
}


@dataclass(frozen=True)
class Run:
    """What one run does.

    Args:
        arm: The arm of the experiment that it belongs to.
        seed: Of the initial weights and of the order of the samples; equal over arms.
        task: What is learned.
        plan: Batch size and learning rate over the run.
        optimizer: A name of `OPTIMIZERS`.
        micro: Samples of a micro-batch, over which batch norm takes its statistics; None for the whole batch.
        evaluations: How often the validation loss is measured, evenly over the run.
        target: Validation loss at which the run may stop; looked at after every 4 % more updates.
        evaluated: Most samples of the evaluation at the end; on the way it is a quarter of them.
    """

    arm: str
    seed: int
    task: Task
    plan: Plan
    optimizer: str
    micro: int | None = None
    evaluations: int = 20
    target: float | None = None
    evaluated: int = 1024


@dataclass
class Outcome:
    """What came of a run. Losses are None where they were not finite.

    Args:
        arm: As in the run.
        seed: As in the run.
        samples: Samples seen.
        updates: Updates done.
        loss: Validation loss at the end.
        error: Share of wrong validation images at the end, where there are classes.
        train_loss: Loss on training samples at the end.
        curve: (samples, updates, validation loss), from the start on.
    """

    arm: str
    seed: int
    samples: int = 0
    updates: int = 0
    loss: float | None = None
    error: float | None = None
    train_loss: float | None = None
    curve: list[tuple[int, int, float | None]] = field(default_factory=list)


def train(run: Run) -> Outcome:
    """Train from scratch as the run says."""
    model = run.task.model(run.seed)
    validation, chosen = run.task.validation, indices(run.task.validation, run.evaluated // 4)
    outcome = Outcome(run.arm, run.seed)

    def look() -> float:
        measured = evaluate(model, validation, chosen)["loss"]
        outcome.curve.append((outcome.samples, outcome.updates, _finite(measured)))
        return measured

    last = look()
    due = _next_look(run, 0, 0)
    for clock in updates(run, model):
        outcome.samples, outcome.updates = clock.samples, clock.updates
        if clock.samples >= due[0] or clock.updates >= due[1]:
            last = look()
            due = _next_look(run, clock.samples, clock.updates)
            if not math.isfinite(last) or (run.target is not None and last <= run.target):
                break
    _finish(run, model, outcome)
    return outcome


def updates(run: Run, model: nn.Module) -> Iterator[Clock]:
    """Do the run's updates; yields the clock after each."""
    data, loss, optimizer = run.task.train, loss_for(model, None), OPTIMIZERS[run.optimizer](model)
    order = Shuffled(len(data), run.seed).locate(np.arange(run.plan.total_samples))
    for clock, step in run.plan.updates():
        set_step(optimizer, step.lr, step.betas, step.eps)
        optimizer.zero_grad()
        accumulate(model, loss, data, order[clock.samples : clock.samples + step.batch_size], run.micro)
        optimizer.step()
        yield clock.advance(step.batch_size, step.batch_size * run.task.context)


def accumulate(model: nn.Module, loss: Loss, data: Any, chosen: Ordinals, micro: int | None) -> None:
    """Add the gradient of the mean loss over the chosen samples, micro-batch by micro-batch."""
    for start in range(0, len(chosen), micro or len(chosen)):
        part = chosen[start : start + (micro or len(chosen))]
        batch = data.gather(part)
        torch.autograd.backward(loss(model, batch) / loss.count(batch) * (len(part) / len(chosen)))


def _next_look(run: Run, samples: int, updates: int) -> tuple[float, float]:
    """At how many samples, or updates, the validation loss is measured again."""
    if run.target is not None:
        return math.inf, updates + max(1, math.ceil(0.04 * updates))
    share = run.plan.total_samples / run.evaluations
    return math.ceil((samples // share + 1) * share - 1e-9), math.inf


def _finish(run: Run, model: nn.Module, outcome: Outcome) -> None:
    """Measure the end of the run on more samples than on the way."""
    measured = evaluate(model, run.task.validation, indices(run.task.validation, run.evaluated))
    outcome.loss, outcome.error = _finite(measured["loss"]), measured.get("error")
    train_set = run.task.train
    outcome.train_loss = _finite(evaluate(model, train_set, indices(train_set, run.evaluated))["loss"])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
