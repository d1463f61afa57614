"""Arguments of wrong types are refused by every public constructor, in the library's own words."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from gradwire import schedulers
from gradwire.schedulers import (
    Clock,
    Constant,
    Duration,
    DurationError,
    Plan,
    PlanError,
    PlannedBatches,
    Schedule,
    ScheduleError,
    SchedulerError,
    adascale,
    batch,
    coupling,
    lr,
    measured,
    noise_scale,
    scaling,
    torch_scheduler,
)
from gradwire.schedulers.batch import LinearWarmup, Ramp
from gradwire.schedulers.coupling import CriticalBatchWarmup, Seesaw
from gradwire.schedulers.horizon import Measured, Progress
from gradwire.schedulers.lr import Cosine, StepDecay, Warmup, WarmupCosine

MODULES = (schedulers, adascale, batch, coupling, lr, measured, noise_scale, scaling)
FACTS = {"Progress", "Step", "Horizon", "Trajectory", "Sizes", "Norms", "Scaled"}  # what the library itself hands out


def constructors() -> dict[str, type]:
    """The public classes that take arguments of a user."""
    found = {
        name: member
        for module in MODULES
        for name in dir(module)
        if inspect.isclass(member := getattr(module, name)) and member.__module__.startswith("gradwire.schedulers")
        if not name.startswith("_") and not inspect.isabstract(member) and not issubclass(member, Exception)
    }
    return {name: cls for name, cls in found.items() if name not in FACTS and inspect.signature(cls).parameters}


def test_every_public_constructor_is_looked_at() -> None:
    assert {"Plan", "Seesaw", "AdaScale", "Joined", "StepDecay", "NoiseScaleBatch", "Linear"} <= set(constructors())


@pytest.mark.parametrize("wrong", [object(), 1j, {1}], ids=["object", "complex", "set"])
@pytest.mark.parametrize("name", constructors())
def test_no_argument_of_a_wrong_type_gets_past_a_constructor(name: str, wrong: object) -> None:
    signature = inspect.signature(constructors()[name])
    good: dict[str, Any] = {
        "number": 1.0, "schedule": Constant(), "first": Warmup("10%"), "following": Constant(), "length": "10%",
        "timescale": "10%", "at": ["50%"], "stages": "0:4", "unit": "samples", "start": 4, "increment": 4,
        "every": "10%", "full": 8, "coupling": Seesaw(4), "reference": 4, "lr": 0.1, "batch": 8,
        "run_length": "80 samples", "total": 80, "samples": 8, "noise_scale": 4.0, "amount": 8,
        "plan": None, "dataset_length": 8,
    }  # fmt: skip
    required = {name: good[name] for name, each in signature.parameters.items() if each.default is each.empty}
    for argument in signature.parameters:
        with pytest.raises(SchedulerError):
            constructors()[name](**required | {argument: wrong})


@pytest.mark.parametrize(
    ("change", "part", "message"),
    [
        ({"batch": Seesaw(8)}, "batch", r"a coupling times the full batch, as in 512 \* Seesaw.*found Seesaw\(start=8"),
        ({"lr": "0.1"}, "lr", "lr of Plan is a finite number or a schedule; found '0.1'"),
        ({"lr": math.nan}, "lr", "finite number or a schedule; found nan"),
        ({"scaling": None}, "scaling", "a Scaling; found None"),
        ({"betas": (0.9,)}, "betas", r"\(a finite number, a finite number\) or None; found \(0.9,\)"),
        ({"betas": (0.9, 1.5)}, "betas", r"lie in \[0, 1\)"),
        ({"eps": -1.0}, "eps", "from 0 on"),
        ({"granule": 1.5}, "granule", "a whole number; found 1.5"),
        ({"context": 0}, "context", "from 1 on; found 0"),
        ({"noise": [(8, 2.0)]}, "noise", "a list, each a Measured"),
        ({"batch": 10**400}, "batch", "batch of Plan is a whole number"),
        ({"batch": 1e300 * Constant()}, "batch", "a batch is a whole number"),
    ],
)
def test_a_plan_names_the_part_that_is_wrong(change: dict[str, Any], part: str, message: str) -> None:
    with pytest.raises(PlanError, match=message) as refused:
        Plan(**{"lr": 0.1, "batch": 64, "run_length": "1000 samples"} | change)
    assert refused.value.part == part


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"lr": 0.1 * Warmup("2000 samples").then(Cosine())}, "lr"),
        ({"lr": 0.1 * Warmup("2 hours").then(Cosine())}, "lr"),
        ({"lr": 0.1 * StepDecay(["900 samples", "1000 samples"])}, "lr"),
        ({"batch": 64 * LinearWarmup("2 epochs")}, "batch"),
        ({"batch": 64 * Ramp(12, 5, "10%")}, "batch"),
        ({"batch": 64 * LinearWarmup("10%"), "granule": 5}, "batch"),
        ({"batch": 64 * Seesaw(8)}, "lr"),
        ({"batch": 64 * Seesaw(128), "lr": 0.1 * Cosine()}, "batch"),
        ({"batch": 64 * CriticalBatchWarmup(8, ["10%"])}, "batch"),
        ({"batch": 64 * Seesaw(8), "scaling": scaling.Linear()}, "scaling"),
        ({"scaling": scaling.SquareRoot(4, adapt_betas=True), "betas": (0.9, 0.99)}, "scaling"),
        ({"scaling": scaling.SquareRoot(4, adapt_betas=True)}, "scaling"),
        ({"scaling": adascale.AdaScale(128)}, "scaling"),
        ({"run_length": "0 samples"}, "run_length"),
        ({"run_length": "0 updates"}, "run_length"),
        ({"run_length": "10%"}, "run_length"),
        ({"run_length": "2 hours"}, "run_length"),
        ({"run_length": "2 epochs"}, "run_length"),
        ({"run_length": "1e18 updates"}, "run_length"),
        ({"run_length": "1e17 samples", "context": 1024}, "run_length"),
        ({"run_length": "1e18 updates", "batch": 64 * measured.NoiseScaleBatch(8)}, "run_length"),
    ],
)
def test_what_does_not_fit_names_its_part(change: dict[str, Any], part: str) -> None:
    with pytest.raises(PlanError) as refused:
        Plan(**{"lr": 0.1, "batch": 64, "run_length": "1000 samples"} | change)
    assert refused.value.part == part, str(refused.value)


def test_numbers_of_numpy_are_numbers() -> None:
    plan = Plan(lr=np.float32(0.5), batch=np.int64(64), run_length="640 samples", granule=np.int32(8))
    assert (plan.peak_lr, plan.total_updates) == (0.5, 10)
    assert type(Ramp(np.int64(8), np.int64(8), "10%").start) is int


def test_a_duration_without_its_unit_is_told_what_to_write() -> None:
    with pytest.raises(DurationError, match="write '500 updates'"):
        Warmup(500)  # type: ignore[arg-type]
    with pytest.raises(DurationError, match="a finite number"):
        Duration("5", "updates")  # type: ignore[arg-type]
    with pytest.raises(DurationError, match=r"more than 2\*\*63"):
        Duration.parse("1e300 samples")
    with pytest.raises(DurationError, match=r"more than 2\*\*63"):
        Duration.parse(f"{10**400} tokens")


@dataclass(frozen=True)
class Broken(Schedule):
    given: Any

    def value(self, at: Progress) -> float:
        return float(1.0 if at.start < 500 else self.given) if isinstance(self.given, float) else self.given


@pytest.mark.parametrize("given", [math.nan, math.inf, -1.0, None, "1"])
def test_a_schedule_whose_value_is_no_number_is_refused_at_once(given: Any) -> None:
    with pytest.raises(ScheduleError, match=r"Broken gives .* a finite number from 0 on") as refused:
        Plan(lr=0.1 * Broken(given), batch=64, run_length="1000 samples")
    assert refused.value.part == "lr"
    with pytest.raises(ScheduleError, match="Broken gives") as refused:
        Plan(lr=0.1, batch=64 * Broken(given), run_length="1000 samples")
    assert refused.value.part == "batch"


def test_what_follows_a_schedule_is_a_schedule() -> None:
    with pytest.raises(ScheduleError, match="following of Joined is a schedule; found 5"):
        Warmup("10%").then(5)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match=r"multiplied with its peak.*found '3e-4'"):
        "3e-4" * WarmupCosine()  # type: ignore[operator]


def test_a_measurement_is_a_number() -> None:
    with pytest.raises(PlanError, match="noise_scale of Measured is a finite number"):
        Measured(8, math.nan)


def plan() -> Plan:
    return Plan(lr=0.1, batch=8 * LinearWarmup("50%", start=2), run_length="64 samples")


@pytest.mark.parametrize(
    "make",
    [
        lambda: PlannedBatches(None, 10),  # type: ignore[arg-type]
        lambda: PlannedBatches(plan(), 10.5),  # type: ignore[arg-type]
        lambda: PlannedBatches(plan(), 10, rank="0"),  # type: ignore[arg-type]
        lambda: PlannedBatches(plan(), 10, world_size=0),
        lambda: PlannedBatches(plan(), 10, clock=5),  # type: ignore[arg-type]
        lambda: torch_scheduler(plan(), None),  # type: ignore[arg-type]
        lambda: torch_scheduler(0.1, torch.optim.SGD([torch.ones(1)], 0.1)),  # type: ignore[arg-type]
    ],
)
def test_an_adapter_refuses_what_is_no_plan(make: Callable[[], object]) -> None:
    with pytest.raises(PlanError):
        make()


def test_planned_batches_are_counted_by_samples_whatever_the_clock_says_of_updates() -> None:
    for clock, _ in plan().updates():
        sampler = PlannedBatches(plan(), 10, clock=Clock(clock.samples))
        assert len(sampler) == len(list(sampler))
    assert len(PlannedBatches(plan(), 10, clock=Clock(64))) == 0
