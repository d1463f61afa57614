"""Which updates of which epochs follow a commit: what the claims of writers say about where each went on from."""

from collections.abc import Collection, Iterable, Mapping
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


class UnknownClaimError(Exception):
    """What an epoch went on from cannot be read, and the answer depends on it.

    Args:
        epoch: The epoch.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the claim of epoch {epoch} cannot be read")
        self.epoch = epoch


def lineage(epochs: Iterable[Epoch], base: Commit, unreadable: Collection[int] = ()) -> tuple[Stretch, ...]:
    """What was made after a commit, oldest first: up to the newest epoch that goes back to it.

    Args:
        epochs: Claims of the store.
        base: The commit.
        unreadable: Epochs of which there is no claim, or a damaged one.

    Raises:
        UnknownClaimError: the newest that may go back to it is one of those, or has one of those on its way.
    """
    claims: dict[int, Epoch | None] = {**dict.fromkeys(unreadable), **{epoch.sequence: epoch for epoch in epochs}}
    for newest in sorted(claims, reverse=True):
        if stretches := _traced(claims, newest, base):
            return stretches
    return (Stretch(base.epoch, base.update + 1, None),)


def _traced(claims: Mapping[int, Epoch | None], newest: int, base: Commit) -> tuple[Stretch, ...]:
    """The stretches from the base to an epoch; none where that epoch does not go back to it."""
    stretches: list[Stretch] = []
    epoch, last = newest, None
    while epoch > base.epoch:
        claim = claims.get(epoch)
        if claim is None:
            raise UnknownClaimError(epoch)
        seal = claim.seals
        if seal is None:
            return ()
        stretches.append(Stretch(epoch, seal.update + 1, last))
        epoch, last = seal.epoch, seal.update
    if epoch != base.epoch or (last is not None and last < base.update):
        return ()
    return (Stretch(epoch, base.update + 1, last), *reversed(stretches))
