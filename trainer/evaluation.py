"""Evaluation that gives the same number at any world size, and samples of text.

The validation set is cut into batches without regard to the ranks; batch j goes to rank j mod world size (to all ranks
of a share, where several compute together). Every batch's sums come back to all ranks in order and are added exactly
(math.fsum), so neither the number of ranks nor the order in which they finish can change a digit.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradwire.trainer.data import SampleStream
from gradwire.trainer.ema import MovingAverage
from gradwire.trainer.errors import LossError
from gradwire.trainer.losses import Loss, move
from gradwire.trainer.precision import Precision
from gradwire.trainer.strategies import Strategy
from gradwire.trainer.writing import Scoring, TextSamples


class EvaluationInterrupted(Exception):  # noqa: N818 - no error: a signal asked the run to stop
    """The run was asked to stop while it evaluated; nothing was measured."""


class Evaluator:
    """Measures a model on a validation set.

    Args:
        model: The model as the strategy prepared it.
        validation: The samples.
        loss: Its `measures` are averaged over the valid targets.
        strategy: Spreads the batches over ranks.
        precision: Number format of the passes.
        average: The moving average of the weights, which is measured instead of them where there is one.
        batch: Samples in a batch.
        limit: Use only so many samples; None uses all.
        samples: Text to sample with each evaluation.
        scoring: What the model writes, judged with each evaluation.
        stop_requested: Polled at each batch on every rank; the ranks agree.
        beat: Told of each batch.
    """

    def __init__(
        self,
        model: nn.Module,
        validation: SampleStream,
        loss: Loss,
        strategy: Strategy,
        precision: Precision,
        *,
        average: MovingAverage | None = None,
        batch: int = 32,
        limit: int | None = None,
        samples: TextSamples | None = None,
        scoring: Scoring | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        beat: Callable[[str, int], None] = lambda phase, update: None,
    ) -> None:
        self._model = model
        self._validation = validation
        self._loss = loss
        self._strategy = strategy
        self._precision = precision
        self._average = average
        self._samples = samples
        self._scoring = scoring
        self._stop_requested = stop_requested
        self._beat = beat
        count = validation.size if limit is None else min(limit, validation.size)
        self._batches = [np.arange(start, min(start + batch, count)) for start in range(0, count, batch)]

    def run(self, update: int) -> dict[str, float | str]:
        """The averages by name (`eval/loss`, …), the same on every rank; `eval/score` where what the model writes is
        judged, and `eval/sample` where text is sampled.

        Raises:
            EvaluationInterrupted: a rank was asked to stop.
        """
        with self._measured_weights():
            return self._run(update)

    @contextmanager
    def _measured_weights(self) -> Iterator[None]:
        """Within the block the model has the weights that evaluation is of."""
        if self._average is None:
            with self._strategy.evaluating():
                yield
            return
        try:
            with self._average.applied():
                self._strategy.refresh(self._model)
                yield
        finally:
            self._strategy.refresh(self._model)

    @torch.no_grad()
    def _run(self, update: int) -> dict[str, float | str]:
        self._strategy.synchronize_buffers(self._model)
        training = self._model.training
        self._model.eval()
        try:
            record: dict[str, float | str] = {f"eval/{name}": value for name, value in self._measure(update).items()}
            if self._scoring is not None:
                self._beat("scoring", update)
                record |= self._scoring.measure(self._model, self._strategy, update)
            if self._samples is not None and self._samples.count > 0:
                self._beat("sampling", update)
                texts = self._samples.draw(self._model, self._strategy, update)
                record["eval/sample"] = "\n\n".join(texts)
            return record
        finally:
            self._model.train(training)

    def _measure(self, update: int) -> dict[str, float]:
        share, shares = self._strategy.data_rank, self._strategy.data_size
        rounds = math.ceil(len(self._batches) / shares)
        names: tuple[str, ...] = ()
        rows: list[list[float]] = []
        for turn in range(rounds):
            self._beat("evaluation", update)
            self._agree_to_go_on()
            # A rank without a batch of its own in the last round repeats one: sharded models need every rank.
            index = min(turn * shares + share, len(self._batches) - 1)
            sums, targets = self._sums(self._batches[index])
            names = tuple(sums)
            mine = torch.tensor([*sums.values(), float(targets)], dtype=torch.float64)
            rows.extend(row.tolist() for row in self._strategy.gather_shares(mine))
        rows = rows[: len(self._batches)]
        total = math.fsum(row[-1] for row in rows)
        if not total:
            raise LossError("the validation samples hold no valid target: all labels are padding or masked")
        return {name: math.fsum(row[k] for row in rows) / total for k, name in enumerate(names)}

    def _sums(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Mapping[str, float], int]:
        batch = self._validation.take(indices)
        with self._precision.autocast():
            measured: Mapping[str, Tensor] = self._loss.measures(self._model, move(batch, self._strategy.device))
        return {name: value.item() for name, value in measured.items()}, self._loss.count(batch)

    def _agree_to_go_on(self) -> None:
        flag = torch.tensor([int(self._stop_requested())], dtype=torch.int64)
        if int(self._strategy.start_sum(flag).wait()[0]):
            raise EvaluationInterrupted
