"""The training loop."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.checkpoint import Checkpointer, Commit, State
from gradwire.schedulers import Clock, Plan, Step
from gradwire.trainer.agenda import Agenda
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.communication import Communication
from gradwire.trainer.data import Feed, SampleStream, UpdateBatch, training_set, validation_set
from gradwire.trainer.data.feed import few_shapes, fewest_passes
from gradwire.trainer.deciding import fall_back, follow_noise_scale, micro_batch, note_choices, note_fast_recovery
from gradwire.trainer.decisions import DecisionLog
from gradwire.trainer.ema import MovingAverage
from gradwire.trainer.evaluation import EvaluationInterrupted, Evaluator
from gradwire.trainer.keeping import Keeping, Reason
from gradwire.trainer.loggers.base import Logger, RunInfo
from gradwire.trainer.losses import Loss, loss_for
from gradwire.trainer.measuring import EVERY, Measuring
from gradwire.trainer.optimizers import members
from gradwire.trainer.precision import Precision
from gradwire.trainer.records import Records
from gradwire.trainer.replaying import replay
from gradwire.trainer.settings import Result, Run, Settings, Status
from gradwire.trainer.state import capture, put_back, put_back_model
from gradwire.trainer.strategies import Single, Strategy
from gradwire.trainer.strategies.limits import check_limits, sees_noise
from gradwire.trainer.times import Times
from gradwire.trainer.triggers import Every
from gradwire.trainer.update import Outcome, Updater
from gradwire.trainer.writing import Scoring, TextSamples, Writing

log = logging.getLogger("gradwire")


class Trainer:
    """Trains a model: update, log, evaluate, save, until the plan's end or until asked to stop.

    Args:
        model: Any module.
        data: A source with `train` (and `validation`), or a map-style dataset.
        optimizer: Over the model's parameters, or what makes it of the prepared model, for strategies that put other
            parameters in place; learning rates (and betas) are set from the plan.
        plan: Batch size and learning rate as functions of the clock.
        loss: A Loss, or a function (model, batch) -> one loss a sample; None takes the model's `default_loss`.
        strategy: Spreads the work over processes; one process where None.
        settings: Everything else about the training.
        checkpointer: Where snapshots go; None saves nothing.
        loggers: On the first rank only.
        callbacks: By name; the name keys their saved state.
        writing: How the model writes text, for callbacks that have it write; None where its data is no text.
        samples: Text to sample with each evaluation.
        scoring: Judgment of what the model writes with each evaluation, for the line of metrics.
        run: Names the run for its loggers.
        stop_requested: Polled every update on every rank; the ranks agree, save and stop.
        beat: Told of each phase, so that a rank that hangs can be named.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        optimizer: Optimizer | Callable[[nn.Module], Optimizer],
        plan: Plan,
        *,
        loss: Loss | Callable[[nn.Module, Any], Tensor] | None = None,
        strategy: Strategy | None = None,
        settings: Settings = Settings(),
        checkpointer: Checkpointer | None = None,
        loggers: Iterable[Logger] = (),
        callbacks: Mapping[str, Callback] | None = None,
        writing: Writing | None = None,
        samples: TextSamples | None = None,
        scoring: Scoring | None = None,
        run: Run = Run(),
        stop_requested: Callable[[], bool] = lambda: False,
        beat: Callable[[str, int], None] = lambda phase, update: None,
    ) -> None:
        self.strategy: Strategy = strategy or Single()
        self._flops = getattr(model, "flops_per_token", None)  # while all weights are here
        self.model = self.strategy.prepare(model)
        self.optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(self.model)
        self._groups = [{**group, "params": list(group["params"])} for group in self.optimizer.param_groups]
        self.members = members(self.model, self.optimizer)  # before `bind`, which may have the groups hold shards
        self.strategy.bind(self.model, self.optimizer)
        self.plan = plan
        self.settings = settings
        self.clock = Clock()
        self.loss = loss_for(model, loss)
        self.precision = Precision(settings.precision, self.strategy.device)
        self.average = None if settings.ema is None else MovingAverage(self.model, settings.ema, self.strategy)
        self.stream = SampleStream(training_set(data), settings.seed)
        self.context: int = getattr(data, "context", 1)
        self.callbacks = dict(callbacks or {})
        self.decisions = DecisionLog()
        self.run = run
        self.writing = writing
        self._checkpointer = checkpointer
        self._beat = beat
        self.keeping = None if checkpointer is None else Keeping(self, checkpointer)
        self.updater = self._build_updater(stop_requested)
        self._evaluator = self._build_evaluator(data, samples, scoring, stop_requested)
        self._agenda = Agenda(settings, plan)
        self.measuring = self._build_measuring()
        self._communication = Communication(self.strategy)
        self._times = Times()
        self.records = Records(loggers, self.strategy, self._times, self.measuring, self._communication)

    def _build_measuring(self) -> Measuring:
        """What measures the noise scale, never where it cannot be seen; what the strategy cannot do is refused."""
        plan, settings = self.plan, self.settings
        check_limits(
            self.strategy,
            measures=plan.measures,
            scaled=self.precision.scaler is not None,
            averaged=self.average is not None,
        )
        wanted = settings.noise_scale_every or (EVERY if plan.measures else None)
        every = Every(wanted if sees_noise(self.strategy) else None, plan)
        return Measuring(every, settings.noise_scale_decay, needed=plan.measures)

    def _build_updater(self, stop_requested: Callable[[], bool]) -> Updater:
        return Updater(
            self.model,
            self.loss,
            self.optimizer,
            self.strategy,
            self.precision,
            seed=self.settings.seed,
            targets=self.context,
            clip=self.settings.clip,
            non_finite=self.settings.non_finite,
            stop_requested=lambda: stop_requested() or self._agenda.out_of_time(),
            due=lambda: self.keeping is not None and self.keeping.due,
            before_reduction=self._wait_for_journal,
            beat=self._beat,
        )

    def _wait_for_journal(self, update: int) -> None:
        if self.keeping is not None and self.keeping.journal is not None:
            with self._times.on("journal"):
                self.keeping.wait(update)

    def _build_evaluator(
        self, data: Any, samples: TextSamples | None, scoring: Scoring | None, stop_requested: Callable[[], bool]
    ) -> Evaluator | None:
        validation = validation_set(data)
        if validation is None:
            return None
        return Evaluator(
            self.model,
            SampleStream(validation, self.settings.seed),
            self.loss,
            self.strategy,
            self.precision,
            average=self.average,
            batch=self.settings.evaluation_batch,
            limit=self.settings.evaluation_limit,
            samples=samples,
            scoring=scoring,
            stop_requested=stop_requested,
            beat=self._beat,
        )

    def fit(self) -> Result:
        """Train from the present clock to the end of the plan, or until asked to stop."""
        self.model.train()
        try:
            self.records.start(self._info())
            for callback in self.callbacks.values():
                callback.on_start(self)
            if self.keeping is not None:
                self.keeping.begin()
            return self._finish(self._train())
        except BaseException:
            if self.keeping is not None:
                self.keeping.give_up()
            self.records.finish("failed")
            raise

    def _train(self) -> Status:
        try:
            if self._agenda.evaluates_at_start(self.clock) or self.records.pending is not None:
                self._complete(self.records.pending or {}, evaluate=True)
            if self._agenda.stops(self.clock, self.plan):
                told = "run.stop_at=%s is behind update %d: go on with another, or null"
                log.warning(told, self.settings.stop_at, self.clock.updates)
                return "preempted"
            note_choices(self)
            micro = micro_batch(self)
            self._prepare_measuring(micro)
            status = None
            while status is None:
                feed = self._feed(micro)
                try:
                    status = self._run_updates(feed)
                finally:
                    feed.close()
            return status
        except EvaluationInterrupted:
            return "preempted"

    def _prepare_measuring(self, micro: int) -> None:
        """A plan that measures needs two sizes of gradient in its first update already, others in their largest."""
        size = self.plan.at(Clock()).batch_size if self.plan.measures else self.plan.largest_batch
        passes = -(-size // (self.strategy.data_size * micro))
        ranks = min(self.strategy.data_size, size)
        self.measuring.prepare(self.model, self._groups, ranks, passes, self.strategy.watch)

    def _feed(self, micro: int) -> Feed:
        return Feed(
            self.stream,
            self.plan,
            self.clock,
            rank=self.strategy.data_rank,
            world_size=self.strategy.data_size,
            micro=micro,
            workers=self.settings.workers,
            cut=few_shapes if self.settings.few_shapes else fewest_passes,
        )

    def _run_updates(self, feed: Iterable[UpdateBatch]) -> Status | None:
        """Train on what the feed gives; None where a measurement has changed the plan, and with it what follows."""
        for batch in self._times.waited(feed):
            before, tokens = self.clock, batch.step.batch_size * self.context
            meter = self.measuring.meter(before, batch.step.batch_size)
            with self._times.on("update"):
                self._communication.before(before.updates)
                outcome = self.updater.run(batch, before.updates, meter)
                self.clock = before.advance(batch.step.batch_size, tokens, skipped=outcome.skipped)
                if self.average is not None and not outcome.skipped:
                    self.average.update()
            self._times.updated(tokens)
            skipped = outcome.skipped and not self.strategy.apart  # else other hosts may not have skipped it
            fall_back(self, self._communication.after(before.updates, skipped=skipped), before.updates)
            changed = follow_noise_scale(self, self.measuring.take(outcome.norms), batch.step)
            self._after_update(before, batch.step, outcome)
            if (outcome.stop and not self.plan.finished(self.clock)) or self._agenda.stops(self.clock, self.plan):
                return "preempted"
            if changed:
                return None
            self._beat("data", self.clock.updates)
        return "done"

    def _after_update(self, before: Clock, step: Step, outcome: Outcome) -> None:
        for callback in self.callbacks.values():
            callback.on_update(self, outcome)
        if self.plan.finished(self.clock):
            self.strategy.conclude()
        due = self._agenda.after(before, self.clock, self.plan)
        record = self.records.measured(self.clock, step, outcome) | self._standing() if due.log else {}
        self._complete(record, evaluate=due.evaluate)
        if due.check_replicas:
            self.strategy.synchronize_buffers(self.model)  # running statistics are each rank's own until then
            self.strategy.check_replicas(self.model)
        if self.keeping is not None:
            with self._times.on("checkpoint"):
                self.keeping.after(before, outcome)

    def _standing(self) -> dict[str, int]:
        """What a line of metrics tells of the run as a whole, where that says anything."""
        found = {"total_updates": self._total_updates()} if self.plan.measures else {}
        if self.clock.skipped:
            found["skipped"] = self.clock.skipped
        if self.keeping is not None and self.keeping.durable_update >= 0:
            found["checkpoint/update"] = self.keeping.durable_update
        return found

    def note(self, values: Mapping[str, float | int]) -> None:
        """Have these go with the next line of metrics, once."""
        self.records.note(values)

    def _total_updates(self) -> int:
        """Updates that were done, by whatever plan, and those that this plan has left."""
        return self.clock.updates + self.plan.updates_left(self.clock)

    def _complete(self, record: dict[str, Any], *, evaluate: bool) -> None:
        """Evaluate if it is time, then write the record. Interrupted, the record is kept for the resumed run."""
        if evaluate and self._evaluator is not None:
            record = self.records.evaluated(self.clock, record, self.evaluate)
        self.records.write(record)
        if record:
            for callback in self.callbacks.values():
                callback.on_record(self, record)

    def evaluate(self) -> dict[str, float | str]:
        """Measure the model (its moving average where there is one) on the validation set.

        Raises:
            EvaluationInterrupted: a rank was asked to stop.
            ValueError: the data has no validation set.
        """
        if self._evaluator is None:
            raise ValueError("the data has no validation set to evaluate on")
        return self._evaluator.run(self.clock.updates)

    def save(self, reason: Reason) -> None:
        """Save a snapshot of the present state, unless this update's was saved already.

        On the way it is written beside training, from a copy; at the end this returns once it is durable.
        """
        if self.keeping is not None:
            self.keeping.save(reason)

    def before_saving(self) -> None:
        """The state is about to be saved. A collective."""
        self._beat("save", self.clock.updates)
        self.strategy.synchronize_buffers(self.model)

    def state(self) -> State:
        """Everything that is not a function of the configuration and the clock."""
        return capture(self)

    def restore(
        self, state: State, everyone: Callable[[], Sequence[Mapping[str, Any]]] | None = None, *, moved: bool = False
    ) -> None:
        """Continue from a saved state.

        Args:
            state: What is shared, and this rank's own.
            everyone: Reads every rank's own state, for ranks that are arranged otherwise now.
            moved: Whether there were more or fewer ranks, so that none of it is this rank's own.

        Raises:
            StateMismatchError: the state is of another model, optimizer or set of callbacks, or past the plan's end.
        """
        put_back(self, state, everyone, moved=moved)
        self.records.restored(self.clock.updates)
        if self.keeping is not None:  # an evaluation that is owing is made up for, and this update saved again
            self.keeping.restored(self.clock.updates, complete=self.records.pending is None)

    def replay(self, base: Commit, last: int | None = None) -> int:
        """Do again what was journalled after the snapshot just restored, up to an update; the update reached.

        Where an update was asked for, or where what ranks carry over is not what they had by then, the journal begins
        with a snapshot: what follows is a branch of its own.

        Raises:
            ReplayError: it does not lead to the same state as before; restore the snapshot again.
        """
        assert self._checkpointer is not None and self.keeping is not None, "without a store there is no journal"
        replayed = replay(self, self._checkpointer, base, last)
        self.keeping.goes_on_from(None if last is not None or replayed.fast else base)
        self.records.replayed(replayed.update)
        if replayed.fast:
            note_fast_recovery(self, base)
        return replayed.update

    def restore_model(self, state: State) -> None:
        """Take a saved model, its moving average and the clock, to evaluate them; the data may be other data.

        Raises:
            StateMismatchError: the state is of another model, or holds no moving average.
        """
        put_back_model(self, state)

    def _info(self) -> RunInfo:
        return RunInfo(
            run_dir=self.run.directory,
            name=self.run.name,
            config=self.run.config,
            total_updates=self._total_updates(),
            tokens_per_sample=self.context,
            world_size=self.strategy.world_size,
            flops_per_token=self._flops,
        )

    def _finish(self, status: Status) -> Result:
        if self.keeping is not None:
            self.keeping.finish(status)
        self.strategy.drain()
        for callback in self.callbacks.values():
            callback.on_end(self, status)
        self.records.finish(status)
        return Result(status, self.clock, self.records.last)
