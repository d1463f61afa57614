"""Which snapshots of several tiers count, and in which order they are tried; the last tier decides.

Whoever writes claims every tier under one nonce, the nearest first, before it saves; and it does so again whenever it
goes back. So the newest claim of the last tier under which any tier has a snapshot, or the last one a journal, names
the present branch. In each tier there count the snapshots of that nonce and those that led to them; where it has none
yet, the one that its claim there goes on from, and those that led to that. What other runs left in a tier has no nonce
of the last tier's; a branch that was abandoned has an older one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gradwire.checkpoint.ancestry import leads_to
from gradwire.checkpoint.commit import Commit, Epoch
from gradwire.checkpoint.commits import History
from gradwire.checkpoint.errors import DamagedCheckpoint, NoCheckpoint

Ref = int | Literal["latest"]
Line = tuple[Commit, ...]


@dataclass(frozen=True)
class Found:
    """A snapshot in one of several tiers.

    Args:
        tier: The tier's place, 0 for the nearest.
        commit: Its commit there.
    """

    tier: int
    commit: Commit


def lines(histories: Sequence[History], journalled: Collection[int] = ()) -> list[Line]:
    """The commits of each tier that count, oldest first.

    Args:
        histories: Of the tiers, the nearest first.
        journalled: The epochs of the last tier that have a journal.
    """
    *nearer, last = histories
    if not nearer:
        return [last.ancestry]
    in_journal = {epoch.writer.nonce for epoch in last.epochs if epoch.sequence in journalled}
    for nonce in _nonces(last):
        if nonce in in_journal or any(
            commit.writer.nonce == nonce for history in histories for commit in history.commits
        ):
            return [_line(history, nonce) for history in histories]
    return [() for _ in histories]


def candidates(histories: Sequence[History], ref: Ref, journalled: Collection[int] = ()) -> list[Found]:
    """The snapshots to try for an update, or for `latest`, in this order: the newest first, and of one update the
    nearest first.

    Raises:
        DamagedCheckpoint: there is none, and there are commits that cannot be read.
        NoCheckpoint: there is none.
    """
    if len(histories) == 1:
        (history,) = histories
        return [Found(0, each) for each in (history.of(ref) if isinstance(ref, int) else history.candidates())]
    everything = [Found(tier, commit) for tier, line in enumerate(lines(histories, journalled)) for commit in line]
    found = [each for each in everything if ref in ("latest", each.commit.update)]
    if not found:
        raise _nothing(histories, ref, everything)
    return sorted(found, key=lambda each: (-each.commit.update, each.tier, -each.commit.sequence))


def holders(histories: Sequence[History], journalled: Collection[int] = ()) -> list[tuple[Commit, tuple[str, ...]]]:
    """The snapshots that count, oldest first, each with the URLs of the tiers that have it, the nearest first."""
    commits: dict[tuple[int, str], Commit] = {}
    urls: dict[tuple[int, str], list[str]] = defaultdict(list)
    for history, line in zip(histories, lines(histories, journalled), strict=True):
        for commit in line:
            key = (commit.update, commit.created)  # a copy has the time of what it was copied from
            commits.setdefault(key, commit)
            urls[key].append(history.url)
    return [(commits[key], tuple(urls[key])) for key in sorted(commits)]


def at_most(line: Line, update: int) -> Commit | None:
    """The newest commit of a line that is not past an update."""
    return next((commit for commit in reversed(line) if commit.update <= update), None)


def _nonces(history: History) -> Iterator[str]:
    """Of the claims and commits in a tier, the newest first."""
    entries: list[Epoch | Commit] = [*history.epochs, *history.commits]
    newest_first = sorted(entries, key=lambda entry: -entry.sequence)
    yield from dict.fromkeys(entry.writer.nonce for entry in newest_first)


def _line(history: History, nonce: str) -> Line:
    own = [commit for commit in history.commits if commit.writer.nonce == nonce]
    seals = [epoch.seals for epoch in history.epochs if epoch.writer.nonce == nonce]
    newest = own[-1] if own else None
    if newest is None and seals and seals[-1] is not None:
        newest = history.newest_until(seals[-1].base)
    if newest is None:
        return ()
    return tuple(each for each in history.commits if leads_to(each.sequence, newest.ancestry))


def _nothing(histories: Sequence[History], ref: Ref, everything: Sequence[Found]) -> NoCheckpoint | DamagedCheckpoint:
    urls = ", ".join(history.url for history in histories)
    damage = "; ".join(str(error) for history in histories for error in history.damaged.values())
    what = "no snapshot that counts" if ref == "latest" else f"no snapshot of update {ref}"
    have = ", ".join(map(str, sorted({each.commit.update for each in everything}))) or "none"
    message = f"{urls}: there is {what}; updates: {have}"
    if not everything and any(history.commits for history in histories):
        message += f"; what is there is not of the run that writes to {histories[-1].url}"
    return DamagedCheckpoint(f"{message}; {damage}") if damage else NoCheckpoint(message)
