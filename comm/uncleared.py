"""Gradients that were reduced already and not cleared before the next backward."""

from collections.abc import Sequence

from gradwire.comm.buckets import Bucket
from gradwire.comm.errors import BackwardError


class Uncleared:
    """Sees whether the last reduction still lies in the buckets: what is accumulated onto it would count it again.

    Args:
        watched: Whether that is a mistake; a mean of what was reduced already is that again.

    Attributes:
        found: Whether it was so when `look` was called last.
    """

    def __init__(self, watched: bool) -> None:
        self.found = False
        self._watched = watched
        self._buckets: Sequence[Bucket] = ()
        self._versions: list[int] = []  # of each bucket's memory right after its reduction

    def reduced(self, buckets: Sequence[Bucket]) -> None:
        """The buckets hold a reduction, which was just written."""
        self._buckets, self._versions = buckets, [bucket.flat._version for bucket in buckets]

    def look(self) -> None:
        """A backward begins, or what was accumulated is to be reduced."""
        looked = zip(self._buckets, self._versions, strict=True)
        self.found = self._watched and any(_untouched(bucket, version) for bucket, version in looked)

    def check(self) -> None:
        """Refuse what was found.

        Raises:
            BackwardError: The last reduction was not cleared.
        """
        if self.found:
            self.found = False
            raise BackwardError(
                "gradients of the last backward were reduced already and not cleared: with op='sum' they would be "
                "counted once for every rank, with overlap='update' once more. Clear them before this backward, or run "
                "all but the last backward under no_sync()"
            )


def _untouched(bucket: Bucket, version: int) -> bool:
    if version != bucket.flat._version:
        return False
    return any(slot.parameter.grad is slot.view for slot in bucket.slots) and bool(bucket.gradients.any())
