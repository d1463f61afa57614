"""Which updates of which epochs follow a commit: what the claims of writers say about where each went on from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradwire.checkpoint.commit import Commit, Epoch


@dataclass(frozen=True)
class Stretch:
    """Updates that one epoch made.

    Args:
        epoch: The epoch.
        first: The first of them.
        last: The last of them that counts; None where no later epoch says.
    """

    epoch: int
    first: int
    last: int | None


def lineage(epochs: Iterable[Epoch], base: Commit) -> tuple[Stretch, ...]:
    """What was made after a commit, oldest first: up to the newest epoch that goes back to it.

    Args:
        epochs: Claims of the store.
        base: The commit.
    """
    claims = {epoch.sequence: epoch for epoch in epochs}
    for newest in sorted(claims, reverse=True):
        if stretches := _traced(claims, newest, base):
            return stretches
    return (Stretch(base.epoch, base.update + 1, None),)


def _traced(claims: Mapping[int, Epoch], newest: int, base: Commit) -> tuple[Stretch, ...]:
    """The stretches from the base to an epoch; none where that epoch does not go back to it."""
    stretches: list[Stretch] = []
    epoch, last = newest, None
    while epoch > base.epoch:
        seal = claims[epoch].seals if epoch in claims else None
        if seal is None:
            return ()
        stretches.append(Stretch(epoch, seal.update + 1, last))
        epoch, last = seal.epoch, seal.update
    if epoch != base.epoch or (last is not None and last < base.update):
        return ()
    return (Stretch(epoch, base.update + 1, last), *reversed(stretches))
