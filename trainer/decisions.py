"""The decision log: what was measured and decided while running, so that a resumed run need not measure again.

Given the log, everything else is a pure function of the configuration, the seed and the clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NOISE_SCALE = "noise_scale"  # name of the decisions that change a plan
ALL_REDUCE = "comm/{nbytes}"  # of those on how buckets of about so many bytes are reduced
CODEC = "codec/{axis}"  # of those that make an axis send bf16 from then on
MICRO_BATCH = "micro_batch"  # of those on how many samples fit into one pass
RECOVERED = "recovered"  # of those that say where a run went on with other residuals than it had


@dataclass(frozen=True)
class Decision:
    """One measured choice, the same on every rank.

    Args:
        update: From this update on it holds.
        samples: Samples of the run before that update.
        name: What was decided, for example `micro_batch`.
        value: The choice.
        reason: Why, for people.
    """

    update: int
    samples: int
    name: str
    value: int | float | str
    reason: str


class DecisionLog:
    """Decisions in the order in which they were made."""

    def __init__(self) -> None:
        self._entries: list[Decision] = []

    def record(self, decision: Decision) -> None:
        """Add a decision."""
        self._entries.append(decision)

    def of(self, name: str) -> list[Decision]:
        """All decisions of this name."""
        return [entry for entry in self._entries if entry.name == name]

    def latest(self, name: str) -> Decision | None:
        """The newest decision of this name."""
        return next((entry for entry in reversed(self._entries) if entry.name == name), None)

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self._entries]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._entries = [Decision(**entry) for entry in state]
