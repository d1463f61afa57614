"""A plan in other people's loops: as torch's learning-rate scheduler, and as the batch sampler of a DataLoader."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.clock import Clock
from gradwire.schedulers.errors import PlanError, ScheduleError
from gradwire.schedulers.plan import Plan


def torch_scheduler(plan: Plan, optimizer: Optimizer, clock: Clock = Clock()) -> "PlanScheduler":  # noqa: B008 - frozen
    """The plan as a torch scheduler of this optimizer; call its `step()` after each `optimizer.step()`.

    Args:
        plan: Batch size and learning rate of the run.
        optimizer: One whose learning rate is the plan's peak. Groups with another one keep their ratio to it.
        clock: Where the run stands.

    Raises:
        PlanError: no group of the optimizer has the plan's peak as its learning rate.
    """
    return PlanScheduler(plan, optimizer, clock)


@checked(PlanError)
class PlanScheduler(LRScheduler):
    """Sets what a plan says about each update: learning rates, and betas and epsilon where the plan has them.

    `step()` moves a clock of its own on by the planned batch, so the loop has to train on batches of that size:
    `PlannedBatches` gives them. At the end of the plan the clock stands still. The state is the clock and nothing else.
    Made by `torch_scheduler`, which takes and refuses the same.
    """

    def __init__(self, plan: Plan, optimizer: Optimizer, clock: Clock = Clock()) -> None:  # noqa: B008 - frozen
        self.plan, self.clock = plan, clock
        self._ratios = _ratios(optimizer, plan.peak_lr)
        super().__init__(optimizer)  # makes the first step, which sets the values of the coming update
        self.last_epoch = clock.updates

    def step(self, epoch: int | None = None) -> None:
        """Set the values of the next update. `epoch` is torch's old argument; a plan follows its clock alone.

        Raises:
            ScheduleError: an epoch was given.
        """
        if epoch is not None:
            raise ScheduleError(f"a plan follows its clock: call step() without an argument, found step({epoch!r})")
        if self.last_epoch >= 0:  # torch makes a first call itself
            self.clock = self.plan.after(self.clock)
        super().step()
        self._set()

    def get_lr(self) -> list[float | torch.Tensor]:
        """Each group's learning rate at the clock."""
        lr = self.plan.at(self.clock).lr
        return [lr * ratio for ratio in self._ratios]

    def state_dict(self) -> dict[str, Any]:
        """The clock's counts."""
        return self.clock.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to a saved clock and set its values.

        Raises:
            ClockError: the state is not a clock's.
        """
        self.clock = Clock.from_dict(state_dict)
        self.last_epoch = self.clock.updates
        self._set()

    def _set(self) -> None:
        step = self.plan.at(self.clock)
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
            if step.betas is not None and "betas" in group:
                group["betas"] = step.betas
            if step.eps is not None and "eps" in group:
                group["eps"] = step.eps
        self._last_lr = self.get_lr()


def _ratios(optimizer: Optimizer, peak: float) -> list[float]:
    """Each group's initial learning rate over the plan's peak."""
    initial = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if not any(np.isclose(lr, peak, rtol=1e-9, atol=0) for lr in initial) or (peak == 0 and any(initial)):
        raise PlanError(
            f"the plan's peak learning rate is {peak:g}, but the optimizer's groups have "
            f"{', '.join(f'{lr:g}' for lr in initial)}: make the optimizer with lr={peak:g}; groups with another rate "
            "keep their ratio to it"
        )
    return [lr / peak if lr != peak else 1.0 for lr in initial]


@checked(PlanError)
class PlannedBatches(Sampler[list[int]]):
    """This rank's indices of each update's batch, for `DataLoader(dataset, batch_sampler=PlannedBatches(…))`.

    One iteration is the run from the clock to the plan's end, not one epoch. Samples are counted through the epochs,
    so a batch may begin in one and end in the next; every epoch is an order of its own, a function of (seed, epoch)
    that takes 8 bytes a sample while it is used. Ranks take contiguous shares of the global batch that differ by at
    most one sample. Their mean losses therefore count alike only where sizes are equal: for the exact mean over the
    global batch, multiply a rank's by `len(indices) * world_size / step.batch_size` before an averaging all-reduce.

    A DataLoader with workers asks for batches ahead of time, so `state_dict` is ahead of the training then. Save the
    `torch_scheduler`'s state, which is the same kind, and load it into both.

    Args:
        plan: Batch sizes of the run.
        dataset_length: Samples of the data set.
        seed: Names the order of the samples.
        rank: This rank.
        world_size: Number of ranks.
        clock: Where to begin.

    Raises:
        PlanError: the arguments contradict each other, or a batch is smaller than the number of ranks.
    """

    def __init__(
        self,
        plan: Plan,
        dataset_length: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        clock: Clock = Clock(),  # noqa: B008 - frozen
    ) -> None:
        if dataset_length < 1 or seed < 0:
            raise PlanError(f"dataset_length must be at least 1 and seed at least 0, found {dataset_length} and {seed}")
        if not 0 <= rank < world_size:
            raise PlanError(f"rank must lie in 0 … {world_size - 1}, found {rank}")
        if plan.smallest_batch < world_size:
            raise PlanError(
                f"the plan has a batch of {plan.smallest_batch} samples, too few for {world_size} ranks to have one "
                f"each: take granule={world_size} and a run_length that is a whole number of granules"
            )
        self._plan, self._length, self._seed = plan, dataset_length, seed
        self._rank, self._world_size = rank, world_size
        self._start = self.clock = clock
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        """Updates from where it begins to the end of the plan."""
        return self._plan.updates_left(self._start)

    def __iter__(self) -> Iterator[list[int]]:
        self.clock = self._start
        while not self._plan.finished(self.clock):
            begin, self.clock = self.clock.samples, self._plan.after(self.clock)
            size = self.clock.samples - begin
            first, stop = (begin + size * rank // self._world_size for rank in (self._rank, self._rank + 1))
            yield self._indices(first, stop)

    def state_dict(self) -> dict[str, int]:
        """The clock after the batches that were handed out."""
        return self.clock.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Begin at a saved clock: this sampler's own, or a `torch_scheduler`'s.

        Raises:
            ClockError: the state is not a clock's.
        """
        self._start = self.clock = Clock.from_dict(state_dict)

    def _indices(self, first: int, stop: int) -> list[int]:
        """The indices of the run's samples first … stop−1."""
        indices: list[int] = []
        while first < stop:
            epoch, position = divmod(first, self._length)
            count = min(stop - first, self._length - position)
            indices += self._permutation(epoch)[position : position + count].tolist()
            first += count
        return indices

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self._seed, epoch)).permutation(self._length)
        return self._order
