"""One optimizer update: micro-batches in, identical weights on every rank out."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.schedulers import Step
from gradwire.schedulers.noise_scale import Norms
from gradwire.trainer.data import UpdateBatch
from gradwire.trainer.errors import NonFiniteError
from gradwire.trainer.losses import Loss, move
from gradwire.trainer.noise import Meter
from gradwire.trainer.optimizers import set_step
from gradwire.trainer.precision import Precision
from gradwire.trainer.randomness import seed_micro_batch
from gradwire.trainer.strategies import Strategy
from gradwire.trainer.strategies.sharding import local


@dataclass(frozen=True)
class Outcome:
    """What an update did.

    Args:
        loss_sum: This rank's summed loss, float64 on the rank's device.
        counted: Valid targets of this rank that it sums over.
        targets: Valid targets of the whole global batch whose gradient this is.
        divisor: What the losses behind this gradient were divided by before it was known how many targets there are.
        grad_norm: Euclidean norm of the averaged gradient before clipping.
        skipped: Whether the gradient was not finite and the weights stayed as they were.
        stop: Whether any rank was asked to stop.
        due: Whether the first rank's wall clock says that something is due.
        norms: Where the update was measured, gives squared norms of the small gradients and the whole one, by group.
    """

    loss_sum: Tensor
    counted: int
    targets: int
    divisor: int
    grad_norm: float
    skipped: bool
    stop: bool
    due: bool
    norms: Callable[[], Mapping[str, Norms]] | None = None


class Updater:
    """Accumulates the gradient of a global batch, reduces, checks, clips and applies it.

    Args:
        model: The model, prepared by the strategy.
        loss: Summed loss and count of targets.
        optimizer: Over the model's parameters.
        strategy: Spreads the work over ranks.
        precision: Number format of the passes.
        seed: The run's seed.
        targets: Targets of a sample where none is padding, by which losses are divided at first.
        clip: Largest norm of the gradient; longer ones are scaled down to it. None leaves them.
        non_finite: `raise` ends the run at a gradient with NaN or infinity, `skip` leaves the weights and goes on.
        stop_requested: Polled once an update: was this rank asked to stop?
        due: Polled once an update; the first rank's answer counts for all.
        before_reduction: Called with the number of updates done before the backward that reduces this one's gradients.
        beat: Told of each phase, so that a rank that hangs can be named.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Optimizer,
        strategy: Strategy,
        precision: Precision,
        *,
        seed: int = 0,
        targets: int = 1,
        clip: float | None = None,
        non_finite: Literal["raise", "skip"] = "raise",
        stop_requested: Callable[[], bool] = lambda: False,
        due: Callable[[], bool] = lambda: False,
        before_reduction: Callable[[int], None] = lambda update: None,
        beat: Callable[[str, int], None] = lambda phase, update: None,
    ) -> None:
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        self._strategy = strategy
        self._precision = precision
        self._seed = seed
        self._targets = targets
        self._clip = clip
        self._non_finite = non_finite
        self._stop_requested = stop_requested
        self._due = due
        self._before_reduction = before_reduction
        self._beat = beat
        self.applying = 0.0  # seconds that the last update's gradients took to be applied
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def run(self, batch: UpdateBatch, update: int, meter: Meter | None = None) -> Outcome:
        """Do one update with this rank's micro-batches; `meter` measures its noise scale.

        Raises:
            NonFiniteError: the gradient is not finite and the policy is `raise`.
        """
        self._beat("forward and backward", update)
        outcome = self.differentiate(batch, update, meter)
        if outcome.skipped:
            self._refuse(batch, outcome.loss_sum, update)
        self._beat("optimizer", update)
        set_step(self._optimizer, batch.step.lr, batch.step.betas, batch.step.eps)
        self._apply(self.shrinking(outcome), kept=not outcome.skipped)
        return outcome

    def shrinking(self, outcome: Outcome) -> float:
        """What the gradient of an update is multiplied with so that it is not longer than `clip`."""
        too_long = self._clip is not None and not outcome.skipped and outcome.grad_norm > self._clip
        return self._clip / outcome.grad_norm if too_long and self._clip is not None else 1.0

    def replay(self, targets: int, divisor: int, shrinking: float, *, kept: bool) -> None:
        """Do an update again whose reduced gradient has been put back, with the optimizer's present learning rate."""
        self._precision.begin()
        self._unscale(targets, divisor)
        self._apply(shrinking, kept=kept)

    def _apply(self, shrinking: float, *, kept: bool) -> None:
        began = time.perf_counter()
        if shrinking != 1.0:
            torch._foreach_mul_(self._gradients(), shrinking)
        scale = self._precision.scale
        self._precision.step(self._optimizer, finite=kept)
        self._strategy.settle(kept=kept)
        self._strategy.rescale(self._precision.scale / scale)
        self._optimizer.zero_grad()
        self.applying = time.perf_counter() - began

    def _unscale(self, targets: int, divisor: int) -> float:
        """Bring gradients to the mean over all targets; by what they are corrected."""
        self._precision.unscale(self._optimizer)
        gradients, correction = self._gradients(), divisor / max(targets, 1)
        if correction != 1 and gradients:
            torch._foreach_mul_(gradients, correction)
        return correction

    def differentiate(self, batch: UpdateBatch, update: int, meter: Meter | None = None) -> Outcome:
        """The first half of an update: afterwards the parameters hold the gradient of the whole batch, not clipped."""
        loss_sum, counted = self._accumulate(batch, update, meter)
        targets, stop, due, divisor = self._strategy.carried()
        scale, correction = self._precision.scale, self._unscale(targets, divisor)
        norm = self._strategy.gradient_norm(self._parameters)
        finite = torch.isfinite(norm).item() is True
        norms = None if meter is None else self._norms(meter, batch.step, targets, scale / correction, finite=finite)
        return Outcome(loss_sum, counted, targets, divisor, norm.item(), not finite, stop > 0, due > 0, norms)

    def _divisor(self, step: Step) -> int:
        """What losses are divided by before backward: the targets of the global batch, if every sample has as many.

        How many there really are is known with the gradients, which are corrected by the ratio then. The divisor comes
        with them as well: where they come late, the batches may have another size by then.
        """
        return max(step.batch_size * self._targets, 1)

    def _norms(
        self, meter: Meter, step: Step, targets: int, scale: float, *, finite: bool
    ) -> Callable[[], Mapping[str, Norms]] | None:
        """What the meter saw; one rank looks at each part of the whole gradient, so that all have the same bits."""
        small, groups = meter.local(), len(meter.groups)
        big = list(meter.big(self._strategy.part).values()) if finite else [0.0] * groups
        values = torch.cat([small, torch.tensor(big, dtype=torch.float64)])
        summed = self._strategy.start_sum(values).wait()
        if not finite:
            return None
        whole = dict(zip(meter.groups, summed[-groups:].tolist(), strict=True))
        return lambda: meter.norms(summed[:-groups], whole, step.batch_size, targets, scale)

    def _accumulate(self, batch: UpdateBatch, update: int, meter: Meter | None) -> tuple[Tensor, int]:
        """Forward and backward of every micro-batch; the summed loss, and over how many targets."""
        device = self._strategy.device
        counts = [self._loss.count(micro.batch) * micro.weight for micro in batch.micro_batches]
        first, divisor = self._strategy.leads, self._divisor(batch.step)
        flags = (int(self._stop_requested()), int(first and self._due()))
        self._strategy.carry([sum(counts), *flags, divisor if first else 0])
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        last = len(batch.micro_batches) - 1
        for index, micro in enumerate(batch.micro_batches):
            if index == last:
                self._before_reduction(update)
            seed_micro_batch(self._seed, self._strategy.data_rank, update, index)
            measured = nullcontext() if meter is None else meter.micro_batch(counts[index])
            with measured, nullcontext() if index == last else self._strategy.accumulate():
                with self._precision.autocast():
                    loss = self._loss(self._model, move(micro.batch, device)) * micro.weight
                self._strategy.backward(self._precision.scaled(loss / divisor))
            loss_sum += loss.detach()
        return loss_sum, sum(counts)

    def _gradients(self) -> list[Tensor]:
        return [local(parameter.grad) for parameter in self._parameters if parameter.grad is not None]

    def _refuse(self, batch: UpdateBatch, loss_sum: Tensor, update: int) -> None:
        if self._non_finite == "skip":
            return
        if self._strategy.late:
            raise NonFiniteError(
                f"update {update}: the gradient, which is that of the update before (comm.overlap=update), holds NaN "
                f"or infinity. {_ADVICE}"
            )
        mine = torch.tensor([int(torch.isfinite(loss_sum).item())])
        culprits = [str(rank) for rank, finite in self._strategy.peers(mine).items() if not int(finite)]
        if not culprits and self._precision.can_lower_the_scale:
            return  # with a gradient scaler an overflow is how the scale is found
        own = f"the loss is not finite on rank {', '.join(culprits)}" if culprits else "every rank's loss is finite"
        first, size = batch.first_ordinal, batch.step.batch_size
        raise NonFiniteError(
            f"update {update}: the gradient holds NaN or infinity ({own}; samples {first} to {first + size - 1}). "
            f"{_ADVICE}"
        )


_ADVICE = (
    "Look for NaN in the data, lower optimizer.lr, or set non_finite=skip to leave such updates out and count them"
)


def without_requests(carried: Sequence[int]) -> list[int]:
    """What is carried with a gradient that a snapshot keeps: what its process was asked to do is over with that."""
    targets, _, _, divisor = carried
    return [targets, 0, 0, divisor]
