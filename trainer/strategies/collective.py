"""What strategies of several ranks have in common: small exchanges beside the gradients."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.trainer.strategies.base import Strategy


@dataclass(frozen=True)
class Sum:
    """A sum over all ranks under way, of which `together` said the same each time.

    Args:
        values: Where it comes to lie.
        work: What to wait for.
        together: Ranks that compute the same together.
    """

    values: Tensor
    work: dist.Work
    together: int = 1

    def wait(self) -> Tensor:
        """The sum over the shares; of flags that only some of a share's ranks have raised, at least 1."""
        self.work.wait()
        if self.together == 1:
            return self.values
        if self.values.is_floating_point():
            return self.values / self.together
        return -torch.div(-self.values, self.together, rounding_mode="floor")


class Collective(Strategy):
    """Exchanges over all ranks; counts go beside the gradients in a collective of their own, or along with them.

    Args:
        device: This rank's device.
        control: Group for the exchanges (a CPU backend); the default group where None.
        together: Neighboring ranks that compute one share of the batch together.
    """

    def __init__(self, device: torch.device, control: dist.ProcessGroup | None = None, together: int = 1) -> None:
        self.device = device
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._control = control
        self._together = together
        self._counts: Sum | None = None

    @property
    def data_rank(self) -> int:
        return self.rank // self._together

    @property
    def data_size(self) -> int:
        return self.world_size // self._together

    def carry(self, counts: Sequence[int]) -> None:
        self._counts = self.start_sum(torch.tensor(counts, dtype=torch.int64))

    def carried(self) -> list[int]:
        assert self._counts is not None, "carry(counts) comes first"
        return [int(count) for count in self._counts.wait()]

    def start_sum(self, values: Tensor) -> Sum:
        work = dist.all_reduce(values, group=self._control, async_op=True)
        assert work is not None
        return Sum(values, work, self._together)

    def gather(self, values: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(values) for _ in range(self.world_size)]
        dist.all_gather(gathered, values, group=self._control)
        return gathered

    def gather_shares(self, values: Tensor) -> list[Tensor]:
        return self.gather(values)[:: self._together]

    def norm_of(self, parts: Sequence[Tensor]) -> Tensor:
        """Euclidean norm of what all ranks hold of a gradient: float64 on the CPU, the same bits everywhere."""
        square = torch.zeros((), dtype=torch.float64)
        if parts:
            square = torch.stack(torch._foreach_norm(list(parts))).double().square().sum().cpu()
        return torch.stack(self.gather(square)).sum().sqrt()

    def synchronize_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
