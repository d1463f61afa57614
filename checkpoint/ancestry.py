"""Which commits led to a commit: intervals of the sequence, because a writer holds its numbers without a gap."""

from gradwire.checkpoint.document import Fields

Ancestry = tuple[tuple[int, int], ...]


def read_ancestry(fields: Fields, sequence: int) -> Ancestry:
    """The ancestry in the document of the commit at `sequence`.

    Raises:
        DamagedCheckpoint: it is none that a commit of this number can have.
    """
    intervals = fields.list("ancestry")
    last = -1
    for interval in intervals:
        if not isinstance(interval, list) or len(interval) != 2 or not all(type(end) is int for end in interval):
            raise fields.damaged("ancestry", "expected pairs of numbers")
        if not last + 1 < interval[0] <= interval[1]:
            raise fields.damaged("ancestry", "expected rising intervals that do not touch")
        last = interval[1]
    if last != sequence:
        raise fields.damaged("ancestry", f"expected it to end at {sequence}")
    return tuple((start, end) for start, end in intervals)


def followed_by(ancestry: Ancestry, start: int, sequence: int) -> Ancestry:
    """The ancestry of a commit at `sequence` whose writer has held the numbers since `start`."""
    if ancestry and ancestry[-1][1] + 1 >= start:
        return (*ancestry[:-1], (ancestry[-1][0], sequence))
    return (*ancestry, (start, sequence))


def leads_to(sequence: int, ancestry: Ancestry) -> bool:
    """Whether the commit at `sequence` is the one that has this ancestry, or one that led to it."""
    return any(start <= sequence <= end for start, end in ancestry)
