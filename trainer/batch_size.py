"""`gradwire batch-size`: what fits, how fast it is, how noisy the gradient is, and what follows for the batch size."""

import logging
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.schedulers import Duration, SchedulerError
from gradwire.schedulers.scaling import NoScaling, Scaling
from gradwire.trainer.assemble import build_model, build_plan, build_strategy, component, make_optimizer, settings_of
from gradwire.trainer.config import ConfigError, compose, validate
from gradwire.trainer.config.checker import TARGET
from gradwire.trainer.config.construction import argument
from gradwire.trainer.config.hosts_apart import trains_apart
from gradwire.trainer.data import training_set
from gradwire.trainer.findings import Findings, to_text, write
from gradwire.trainer.host_memory import MemoryGuard, available
from gradwire.trainer.launch.context import WorkerContext
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.watchdog import PREPARING
from gradwire.trainer.micro_batch import most_that_fit
from gradwire.trainer.noise_survey import survey
from gradwire.trainer.recommendation import Setup, command, recommend
from gradwire.trainer.rehearsal import Rehearsal, Speed, doublings, optimizer_state_allocated
from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")
_SEARCHED = 1 << 16  # samples: larger micro-batches are not of interest
_SURVEY_SECONDS = 60.0
_SURVEY_BATCHES = 64  # of the configured size, where these take longer


class _Stopped(Exception):  # noqa: N818 - no error: somebody asked to stop
    """A rank was asked to stop."""


def measured_as(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with every gradient that of the whole batch, and applied at once."""
    apart = {"strategy": {TARGET: "gradwire.trainer.strategies.DataParallel"}} if trains_apart(config) else {}
    return {**config, **apart, "comm": {**config["comm"], "overlap": "backward"}}


class _Survey:
    """The measurements on one rank, in step with the others.

    Args:
        config: The resolved configuration.
        context: This rank's place.
    """

    def __init__(self, config: Mapping[str, Any], context: WorkerContext) -> None:
        self._config, self._context = config, context
        self._updates = int(context.arguments["updates"])
        self.trainer = self._build()
        self._rehearsal = Rehearsal(self.trainer)

    def run(self) -> Findings:
        """Measure everything. A collective.

        Raises:
            _Stopped: a rank was asked to stop.
        """
        trainer, world_size = self.trainer, self._context.world_size
        trainer.model.train()
        share = math.ceil(trainer.plan.largest_batch / world_size)
        limit = self._limit(share)
        with optimizer_state_allocated(trainer):
            self._check(f"looking for the largest micro-batch that fits, up to {limit:,} samples")
            largest = self._largest(limit)
            speeds = self._speeds(largest)
        micro = min(trainer.settings.micro or share, largest)
        trainer.settings = replace(trainer.settings, micro=micro)
        self._train()
        fastest = max(speeds, key=lambda speed: speed.samples_per_second)
        noise = survey(trainer, min(fastest.micro_batch, micro), self._affordable(fastest), self._check)
        return Findings(world_size, self._context.device.type, largest, limit, speeds, trainer.clock.updates, noise)

    def _build(self) -> Trainer:
        config, context, allow = self._config, self._context, self._context.allow
        context.watchdog.beat(PREPARING, 0)
        self.data = data = component(config["data"], allow, "workers")
        training_set(data)
        context.watchdog.beat("building the model", 0)
        model = build_model(config, allow, fresh=True)
        settings = replace(settings_of(config), evaluate_every=None, save_every=None, check_replicas_every=None)
        return Trainer(
            model,
            data,
            make_optimizer(config, model, allow),
            build_plan(config, data, allow),
            loss=component(config["loss"], allow) if config["loss"] else None,
            strategy=build_strategy(measured_as(config), context, allow),
            settings=replace(settings, noise_scale_every=None, max_time=None, stop_at=None),
            stop_requested=lambda: context.stop.requested or self.trainer.clock.updates + 1 >= self._updates,
            beat=context.watchdog.beat,
        )

    def _limit(self, share: int) -> int:
        """Where to stop looking: on a CPU memory is never the reason for small passes in a run."""
        if self._context.device.type != "cuda":
            return share
        return max(share, min(self.trainer.stream.epoch_samples or _SEARCHED, _SEARCHED))

    def _largest(self, limit: int) -> int:
        attempt: Callable[[int], None] = self._rehearsal.attempt
        if self._context.device.type != "cuda":
            budget = available() / 2 / self._context.local_world_size
            attempt = MemoryGuard(budget).guarded(attempt)
        return most_that_fit(limit, attempt, self._rehearsal.agree)

    def _speeds(self, largest: int) -> tuple[Speed, ...]:
        speeds = []
        self._check("timing passes")
        for speed in self._rehearsal.speeds(doublings(largest)):
            speeds.append(speed)
            self._check(f"micro-batch {speed.micro_batch:,}: {speed.samples_per_second:,.1f} samples a second")
        return tuple(speeds)

    def _train(self) -> None:
        if self._updates:
            self._check(f"training {self._updates:,} updates")
            self.trainer.fit()

    def _affordable(self, fastest: Speed) -> int:
        """Samples of one round of the noise survey, the largest."""
        trainer = self.trainer
        in_time = int(fastest.samples_per_second * _SURVEY_SECONDS / 8)  # four such rounds, smaller ones before them
        most = max(in_time, _SURVEY_BATCHES * trainer.plan.at(trainer.clock).batch_size)
        return min(most, trainer.stream.epoch_samples or most)

    def _check(self, what: str) -> None:
        """Say what comes next, unless a rank was asked to stop."""
        if not self._rehearsal.agree(not self._context.stop.requested):
            raise _Stopped
        self._context.watchdog.beat(what, self.trainer.clock.updates)
        log.info("%s", what)


def measure(config: Mapping[str, Any], context: WorkerContext) -> int:
    """Measure on this rank, together with the others; the first rank prints what follows. The exit code."""
    measuring = _Survey(config, context)
    try:
        findings = measuring.run()
    except _Stopped:
        return int(ExitCode.PREEMPTED)
    if context.rank == 0:
        setup = setup_of(config, measuring.trainer, context)
        typed = context.arguments["command"]
        advice = recommend(
            setup,
            list(findings.speeds),
            findings.noise.noise_scale,
            lambda overrides: refusal(command(typed, overrides), measuring.data),
        )
        again = command(typed, advice.overrides)
        sys.stdout.write(to_text(findings, advice, measuring.trainer.plan.total_updates, again))
        write(context.arguments, findings, advice, again)
    if context.local_rank == 0:
        shutil.rmtree(context.run_dir, ignore_errors=True)  # a temporary folder with logs that told nothing
    return int(ExitCode.DONE)


def refusal(again: str, data: Any = None) -> str | None:
    """Why a command would be refused, the first reason that there is; None where it would not.

    Args:
        again: The command.
        data: The run's data, which knows how long an epoch is; None to leave that out.
    """
    _, _, *words = shlex.split(again)
    folder = Path(words[1]) if words[:1] == ["--config-dir"] else None
    try:
        valid = validate(compose(words if folder is None else words[2:], folder))
        if data is not None:
            build_plan(valid.config, data, valid.allow_targets)
    except ConfigError as error:
        return " ".join(error.mistakes[0].message.split())
    except SchedulerError as error:
        return str(error)
    return None


def setup_of(config: Mapping[str, Any], trainer: Trainer, context: WorkerContext) -> Setup:
    """The configured run, as far as it bears on the advice."""
    scaling: Scaling = component(config["scaling"], context.allow)
    optimizer, batch = config["optimizer"], config["batch"]
    return Setup(
        batch_size=batch["size"],
        granule=batch["granule"],
        world_size=context.world_size,
        total_samples=trainer.plan.total_samples,
        lr=optimizer["lr"],
        betas=tuple(optimizer["betas"]) if "betas" in optimizer else None,
        scaling=None if isinstance(scaling, NoScaling) else scaling,
        reference=getattr(scaling, "reference", None),
        has_warmup=argument(config, "lr", "warmup", context.allow) is not None,
        length_in_updates=Duration.parse(config["run"]["length"]).unit == "updates",
        schedule=component(batch["schedule"], context.allow),
        measures=trainer.plan.measures,
    )
