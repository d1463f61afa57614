"""What a coupling is, and how the full batch is put before it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.errors import PlanError
from gradwire.schedulers.schedule import Schedule


class Coupling(ABC):
    """A rule for batch size and learning rate together. `start` is the first batch; the learning rate holds there."""

    start: int

    @abstractmethod
    def batch(self, lr: Schedule, full: int) -> Schedule:
        """The batch size in samples, given the learning-rate schedule and the full batch."""

    @abstractmethod
    def rate(self, lr: Schedule, full: int) -> Schedule:
        """The learning rate in place of `lr`."""

    def check_reached(self, largest: int, full: int) -> None:  # noqa: B027 - most need none
        """Refuse a full batch that the run does not reach.

        Raises:
            PlanError: it does not.
        """

    def __rmul__(self, full: int) -> "Coupled":
        return Coupled(full, self)


BatchRule = Schedule | Coupling  # what the full batch can be multiplied with


@checked(PlanError)
@dataclass(frozen=True)
class Coupled:
    """A coupling and the full batch, which the batch never exceeds.

    Args:
        full: Full batch in samples.
        coupling: The rule.

    Raises:
        PlanError: the batch is no whole number of samples from 1 on.
    """

    full: int
    coupling: Coupling

    def __post_init__(self) -> None:
        if self.full < 1 or int(self.full) != self.full:
            raise PlanError(f"a batch is a whole number of samples from 1 on; found {self.full!r}")

    def split(self, lr: Schedule) -> tuple[Schedule, Schedule]:
        """The batch-size schedule and the learning-rate schedule."""
        return self.coupling.batch(lr, self.full), self.coupling.rate(lr, self.full)

    def check_reached(self, largest: int) -> None:
        """Refuse a full batch that the run does not reach: `largest` is what it reaches.

        Raises:
            PlanError: it does not.
        """
        self.coupling.check_reached(largest, self.full)
