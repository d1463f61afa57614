"""What the trainer asks of a strategy: how replicas of a model share one update's work."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.checkpoint import Wanted
from gradwire.comm import CommError
from gradwire.comm.choices import Choice
from gradwire.trainer.optimizers import load_named_state, named_state
from gradwire.trainer.strategies.exchanges import Cost, Pending, Reduced, Removable, hook
from gradwire.trainer.strategies.sharding import check_dtypes, placed


class Strategy(ABC):
    """A way to spread training over processes: one small class each.

    What is said here suits one process without communication; a strategy replaces what it does otherwise.

    Attributes:
        rank: This process.
        world_size: Processes in all.
        device: This rank's.
    """

    rank: int = 0
    world_size: int = 1
    device: torch.device
    layout: str = "buckets"  # what parts of gradients `reduced` is of; only with the same ones can it be put back
    whole: bool = True  # whether each rank holds a whole model, and can call it without the others
    apart: bool = False  # whether ranks hold different models, and apply different gradients, for a while

    @property
    def data_rank(self) -> int:
        """Which share of a global batch is this rank's; ranks that compute together have the same one."""
        return self.rank

    @property
    def data_size(self) -> int:
        """Into how many shares a global batch is cut."""
        return self.world_size

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for all whose gradients are summed with its own."""
        return self.data_rank == 0

    @property
    def late(self) -> bool:
        """Whether backward leaves the gradients of the update before, and none in the first one."""
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        """Place the model on this rank's device and arrange that backward reduces its gradients by summing."""
        return model.to(self.device)

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        """The optimizer over the prepared model's parameters has been made."""

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a micro-batch."""
        loss.backward()  # type: ignore[no-untyped-call]

    def accumulate(self) -> AbstractContextManager[None]:
        """Within the block backward only accumulates this rank's own gradients."""
        return nullcontext()

    @abstractmethod
    def carry(self, counts: Sequence[int]) -> None:
        """Sum whole numbers over the ranks together with the next reduction of the gradients; see `carried`."""
        ...

    @abstractmethod
    def carried(self) -> list[int]:
        """The sums that belong to the gradients, once the backward that reduces is over; zeros while there are none."""
        ...

    def unmeasurable(self) -> str | None:
        """Why the gradients of single micro-batches cannot be seen, so that no noise scale is measured; for people."""
        return None

    def watch(self, parameter: nn.Parameter, see: Callable[[Tensor], None]) -> Removable:
        """Have `see` called with each gradient of a parameter of this rank, before it is accumulated and reduced."""
        return hook(parameter, see)

    def part(self, parameter: nn.Parameter) -> Tensor | None:
        """What of a reduced gradient counts for this rank, so that it counts once over all; None for nothing."""
        return parameter.grad if self.rank == 0 else None

    def gradient_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Euclidean norm of all gradients that the parameters hold now; the same bits on every rank. A collective."""
        return torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])

    def settle(self, kept: bool) -> None:
        """The update of the last reduction was applied, or its gradient thrown away."""

    def rescale(self, factor: float) -> None:
        """Gradients come multiplied with `factor` from now on, compared with before."""

    def drain(self) -> None:
        """Wait until no gradient is under way. A collective."""

    def carries(self) -> bool:
        """Whether ranks carry over, from update to update, what depends on their own gradients (what codecs lost)."""
        return False

    def record(self) -> str | None:
        """Keep, from the next reduction on, what it follows from; why that cannot be, for people."""
        return f"{type(self).__name__} keeps no gradients"

    def reduced(self) -> Reduced:
        """Of the last reduction, this rank's share. Its memory is used again once it is given back."""
        raise AssertionError("record() said that there is nothing to keep")

    def give_back(self, reduced: Reduced) -> None:
        """It was copied."""

    def put_back(self, reduced: Sequence[Reduced]) -> None:
        """Have the gradients of a reduction, from what all its ranks kept, as if backward had just left them.

        Raises:
            CommError: They are of another model, or this strategy cannot.
        """
        raise CommError(f"{type(self).__name__} cannot put a reduced gradient back")

    def cost(self) -> Cost:
        """Of the reductions since the last call."""
        return Cost()

    def tolerances(self) -> Mapping[str, float]:
        """By axis, the relative error past which its codec must not be used any more, where it has such a limit."""
        return {}

    def fall_back(self, axis: str) -> None:
        """Use a codec on `axis` that is exact enough for anything; every rank does, between the same two updates."""

    def choices(self) -> Sequence[Choice]:
        """How gradients are reduced, where that was measured and chosen."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """What this rank carries over from update to update beside the model."""
        return {}

    def position(self) -> dict[str, Any]:
        """What `state_dict()` holds beside what `carries` means."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from this rank's own `state_dict()`; False, with nothing changed, where it does not fit any more."""
        return not state

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        """Continue from those of all ranks of another arrangement; what had to be dropped, for people."""
        return "what codecs lost so far" if any(state.get("residuals") for state in states) else None

    @abstractmethod
    def start_sum(self, values: Tensor) -> Pending:
        """Start summing a small CPU tensor over the shares of the batch, beside the gradients' own traffic."""
        ...

    @abstractmethod
    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's small CPU tensor (the same shape everywhere), by rank."""
        ...

    def gather_shares(self, values: Tensor) -> list[Tensor]:
        """As `gather`, one for each share of the batch."""
        return self.gather(values)

    def peers(self, values: Tensor) -> Mapping[int, Tensor]:
        """As `gather`, by rank, of those whose gradients are summed with this one's."""
        return dict(enumerate(self.gather(values)))

    def conclude(self) -> None:
        """The last update of the plan is over. A collective."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Within the block the model is what evaluation is of."""
        return nullcontext()

    def refresh(self, model: nn.Module) -> None:
        """The weights were written by hand: passes use them from now on."""

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """What this rank holds of the model's parameters and buffers, live, by the names of its state."""
        return model.state_dict()

    def wanted(self, model: nn.Module) -> Wanted | None:
        """What this rank needs of a snapshot's tensors that were saved in slices; None for all of each."""
        return None

    def placed(self, name: str, value: Any, like: Tensor | None) -> Any:
        """A whole tensor as `tensors` has that of a name, which gave `like`."""
        return placed(value, like)

    def load_model(self, model: nn.Module, saved: Mapping[str, Tensor]) -> None:
        """Give the model whole tensors by name.

        Raises:
            RuntimeError: they are of another model.
        """
        live = model.state_dict()
        check_dtypes(saved, live)
        model.load_state_dict({name: self.placed(name, value, live.get(name)) for name, value in saved.items()})

    def optimizer_state(self, model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
        """What this rank holds of the optimizer's state, by parameter name."""
        return named_state(model, optimizer)

    def load_optimizer_state(
        self, model: nn.Module, optimizer: Optimizer, saved: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Give the optimizer whole tensors by parameter name.

        Raises:
            StateMismatchError: they are of parameters that it does not hold.
        """
        load_named_state(model, optimizer, saved, placed)

    def portable(self, tree: Any) -> Any:
        """A tree of this strategy's tensors, by name, as it is saved, for any strategy to go on from."""
        return tree

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Give every rank the first rank's buffers (running statistics)."""

    def check_replicas(self, model: nn.Module) -> None:
        """Raise where ranks that are to be equal hold different bits."""
