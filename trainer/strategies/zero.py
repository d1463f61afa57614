"""DeepSpeed's ZeRO optimizers seen from outside: flat partitions, where parameters lie in them, and their gradients.

What is asked of DeepSpeed here are attributes of its own classes (0.19); the rest of gradwire knows none of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.trainer.strategies.stretches import Bounds


@dataclass(frozen=True)
class Place:
    """Where this rank's part of a parameter lies.

    Args:
        name: Of the parameter.
        shape: Of the whole parameter.
        bounds: Which of its elements.
        partition: Which flat partition they are in.
        start: Where in it.
        frozen: They themselves, where the parameter is not trained and so in no partition.
    """

    name: str
    shape: tuple[int, ...]
    bounds: Bounds
    partition: int
    start: int
    frozen: Tensor | None = None


class Partitions(ABC):
    """The flat partitions of a rank, which its optimizer steps, with their gradients where torch looks for them.

    Args:
        zero: DeepSpeed's optimizer.
        flats: Its partitions of weights, in the precision in which they are updated.
    """

    def __init__(self, zero: Any, flats: Sequence[Tensor]) -> None:
        self._zero = zero
        self.flats = list(flats)
        self._buffers = [flat.grad for flat in flats]  # into which passes write, where state is kept on the host

    @abstractmethod
    def places(self) -> Iterator[Place]:
        """Every parameter that is partitioned, also where this rank has nothing of it."""
        ...

    def begin(self) -> None:
        """The passes of an update follow."""
        for flat, buffer in zip(self.flats, self._buffers, strict=True):
            flat.grad = buffer

    def finish(self, factor: float) -> None:
        """The backward that reduces is over: give every partition its gradient, multiplied with `factor`."""
        for flat, gradient in zip(self.flats, self._gradients(), strict=True):
            flat.grad = gradient.to(flat.dtype)
            flat.grad.mul_(factor)

    @abstractmethod
    def _gradients(self) -> list[Tensor]:
        """One for each of `flats`."""
        ...

    @abstractmethod
    def publish(self) -> None:
        """The partitions were written: passes use what is in them from now on. A collective."""
        ...

    def reset(self) -> None:
        """The gradients of an update were applied, or are thrown away: nothing of them is left for the next one."""
        for buffer in self._buffers:
            if buffer is not None:
                buffer.zero_()
        self._zero.zero_grad(set_to_none=True)


def partitions_of(zero: Any, stage: int, rank: int) -> Partitions:
    """Those of DeepSpeed's optimizer of a stage."""
    return WeightPartitions(zero, rank) if stage == 3 else GradientPartitions(zero)


class GradientPartitions(Partitions):
    """Stages 1 and 2: every rank holds all weights, and updates its part of each group laid end to end.

    Args:
        zero: DeepSpeed's optimizer.
    """

    def __init__(self, zero: Any) -> None:
        super().__init__(zero, zero.single_partition_of_fp32_groups)

    def places(self) -> Iterator[Place]:
        for index, group in enumerate(self._zero.bit16_groups):
            for parameter in group:
                name, shape, held = self._zero.param_names[parameter], tuple(parameter.shape), parameter._hp_mapping
                if held is None:
                    yield Place(name, shape, (0, 0), index, 0)
                    continue
                start = held.lp_fragment_address.start
                bounds = (start, start + held.lp_fragment_address.numel)
                yield Place(name, shape, bounds, index, held.hp_fragment_address.start)

    def _gradients(self) -> list[Tensor]:
        zero = self._zero
        if zero.cpu_offload:
            zero._wait_for_offload_copies()
            return [flat.grad for flat in self.flats if flat.grad is not None]
        return [_flattened(zero.averaged_gradients[index]) for index in range(len(self.flats))]

    def publish(self) -> None:
        self._zero.update_lp_params()

    def reset(self) -> None:
        zero = self._zero
        super().reset()
        for index in range(len(self.flats)):
            zero.averaged_gradients[index] = zero.all_grad_tensors[index] = None
        zero.micro_step_id = -1  # no micro-batch so far, as after a step
        if zero.cpu_offload:
            zero.reset_cpu_buffers()
            zero._offload_accumulated_param_ids = set()


def _flattened(pieces: Any) -> Tensor:
    """A partition's gradient, which may lie in one piece already."""
    whole: Tensor | None = getattr(pieces, "flat_partition", None)
    return torch.cat([piece.reshape(-1) for piece in pieces]) if whole is None else whole.view(-1)


class WeightPartitions(Partitions):
    """Stage 3: every rank holds and updates its part of each parameter, and gathers weights when it needs them.

    Args:
        zero: DeepSpeed's optimizer.
        rank: This one.
    """

    def __init__(self, zero: Any, rank: int) -> None:
        super().__init__(zero, zero.fp32_partitioned_groups_flat)
        zero._set_fp32_optimizer_param_groups()  # it does so for each step otherwise
        self._rank = rank

    def places(self) -> Iterator[Place]:
        trained = set()
        for index, group in enumerate(self._zero.fp16_groups):
            start = 0
            for parameter in group:
                trained.add(parameter)
                yield self._place(parameter, index, start)
                start += parameter.partition_numel()
        for parameter in self._zero.param_names:
            if parameter not in trained:
                yield self._place(parameter, -1, 0, parameter.ds_tensor)

    def _place(self, parameter: Any, index: int, start: int, frozen: Tensor | None = None) -> Place:
        each, numel = parameter.partition_numel(), parameter.ds_numel
        bounds = (min(self._rank * each, numel), min((self._rank + 1) * each, numel))
        return Place(self._zero.param_names[parameter], tuple(parameter.ds_shape), bounds, index, start, frozen)

    def _gradients(self) -> list[Tensor]:
        zero = self._zero
        if zero.offload_optimizer:
            return [flat.grad for flat in self.flats if flat.grad is not None]
        return list(zero.grad_partitions_flat_buffer.split([flat.numel() for flat in self.flats]))

    def publish(self) -> None:
        zero = self._zero
        zero._partition_all_parameters()
        for index in range(len(self.flats)):
            zero._reassign_or_swap_out_partitioned_parameters(index)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def reset(self) -> None:
        zero = self._zero
        super().reset()
        zero._pre_step()  # which a step begins with
        zero.averaged_gradients = {}
        zero.grad_partitions_flat_buffer.zero_()
        if zero.offload_optimizer:
            zero.reset_cpu_buffers()
