"""When the journal has become so long that a snapshot is due."""

from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.trainer.journaling import Journaling


def due_after(within: float | None, loading: float, an_update: float) -> int | None:
    """The first update after a snapshot at which another one is due, of a thousand."""
    nothing: Any = SimpleNamespace()
    journal = Journaling(nothing, nothing, "update", 5.0, within)
    journal.rebase(SimpleNamespace(update=0), loading)  # type: ignore[arg-type]
    journal._saved, journal._per_update = 0, an_update
    for last in range(1000):
        journal._writer = SimpleNamespace(last=last)  # type: ignore[assignment]
        if journal.due:
            return last
    return None


@pytest.mark.parametrize(
    ("within", "loading", "an_update", "first"),
    [
        (10.0, 1.0, 1.0, 10),  # nine updates are replayed in the time that loading leaves
        (10.0, 4.0, 0.5, 13),
        (1.0, 2.0, 0.1, 21),  # loading alone takes too long: replaying may take as long
        (None, 1.0, 1.0, None),
    ],
)
def test_a_snapshot_is_due_once_recovery_would_take_too_long(
    within: float | None, loading: float, an_update: float, first: int | None
) -> None:
    assert due_after(within, loading, an_update) == first
