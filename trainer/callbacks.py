"""Callbacks: somebody else's code at the trainer's few well-defined moments."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer
    from gradwire.trainer.update import Outcome

Record = Mapping[str, float | int | str]


class Callback:
    """Base of callbacks; override what you need. Every rank calls every hook at the same moments.

    A callback with state that matters for the training overrides `state_dict` and `load_state_dict`: what they give and
    take (tensors, numbers, text, lists and mappings of them) is saved with the run.
    """

    def on_start(self, trainer: "Trainer") -> None:
        """The state is in place (restored, if the run was resumed); the first update comes next."""

    def on_update(self, trainer: "Trainer", outcome: "Outcome") -> None:
        """An update was applied (or skipped) and the clock has moved."""

    def on_record(self, trainer: "Trainer", record: Record) -> None:
        """A line of metrics was written."""

    def on_save(self, trainer: "Trainer") -> None:
        """A snapshot of the present state was committed."""

    def on_end(self, trainer: "Trainer", status: str) -> None:
        """The run ends: `done` or `preempted`."""

    def state_dict(self) -> dict[str, Any]:
        """State to save; empty unless overridden."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
