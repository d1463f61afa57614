"""Weights alone, without the rest of a run's state."""

import functools
import os
from typing import Any

from torch import Tensor

from gradwire.checkpoint import tree
from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.commits import CommitLog
from gradwire.checkpoint.errors import NoCheckpoint, UnsupportedState
from gradwire.checkpoint.loading import load_tree
from gradwire.checkpoint.ranks import Ranks
from gradwire.checkpoint.restoring import Restorer
from gradwire.checkpoint.snapshot import read_parts, shared_places
from gradwire.checkpoint.store import Store


def load_weights(
    url_or_dir: str | os.PathLike[str], update: int | None = None, of: str = "model"
) -> tuple[dict[str, Tensor], Commit]:
    """The tensors that a snapshot holds under a name of its shared state, by theirs; nothing else is read.

    Args:
        url_or_dir: A store, or a run directory with one in `checkpoints`.
        update: Which snapshot; None for the newest whole one.
        of: That name.

    Raises:
        NoCheckpoint: there is no snapshot, or none of that update.
        DamagedCheckpoint: it is damaged, or all are.
        UnsupportedState: it has no such tensors.
        StoreError: the store cannot be read.
    """
    store = _store_at(os.fspath(url_or_dir))
    weights, found = Restorer([store], Ranks(None)).restore(
        "latest" if update is None else update, functools.partial(_weights, of)
    )
    return weights, found.commit


def _store_at(url: str) -> Store:
    below = f"{url.rstrip('/')}/checkpoints"
    for candidate in (url, below):
        store = Store.open(candidate)
        if CommitLog(store).sequences():
            return store
    raise NoCheckpoint(f"neither {url} nor {below} holds a snapshot")


def _weights(of: str, store: Store, commit: Commit) -> dict[str, Tensor]:
    parts = read_parts(store, commit.parts)
    where = f"{store.url}: update {commit.update}"
    node = tree.subtree(parts[0].shared, of, where)
    if node is None:
        raise UnsupportedState(f"{where} has no {of!r}; it has {', '.join(commit.captured['shared'])}")
    model: Any = load_tree(store, shared_places(parts, where), node, f"{where}, {of}")
    if not isinstance(model, dict):
        raise UnsupportedState(f"{where}: {of!r} is not a dict of tensors by name")
    return {str(name): value for name, value in model.items() if isinstance(value, Tensor)}
