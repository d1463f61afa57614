"""Ranks acting together: each does its share, then all learn what came of it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradwire.checkpoint import errors
from gradwire.checkpoint.errors import CheckpointError


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank.

    Args:
        rank: Where.
        kind: Name of the error's class.
        reason: Its message.
    """

    rank: int
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.reason}"


class RanksFailed(Exception):  # noqa: N818
    """At least one rank failed; raised on every rank, never handed to the user.

    Args:
        failures: All of them, by rank.
    """

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures


def raising(action: Callable[[], Any]) -> Any:
    """What `action` returns; where ranks failed, the most telling failure as an error of its own class."""
    try:
        return action()
    except RanksFailed as error:
        failures = sorted(error.failures, key=lambda failure: failure.kind in ("DamagedCheckpoint", "MissingObject"))
        kind = getattr(errors, failures[0].kind, CheckpointError)
        reason = failures[0].reason if len(failures) == 1 and failures[0].rank == 0 else str(error)
        raise kind(reason) from error.__cause__


class Ranks:
    """The ranks of a process group, exchanging JSON as tensors of bytes (object collectives pickle).

    Args:
        group: A torch.distributed process group; None for one process alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def apart(self) -> "Ranks":
        """The same ranks over a new gloo group, for a thread beside the ones that use this group. All call it."""
        if self._group is None:
            return Ranks(None)
        members = dist.get_process_group_ranks(self._group)
        alone = len(members) < dist.get_world_size()
        return Ranks(dist.new_group(members, backend="gloo", use_local_synchronization=alone))

    def close(self) -> None:
        """Give the group up; for one that `apart` made, and that nobody uses any more.

        One that its own ranks created alone stays: torch would give its name to the next of the same ranks, and with it
        the addresses that it left in the store.
        """
        if self._group is not None and self._group.group_name.isdigit():
            dist.destroy_process_group(self._group)

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Act on every rank; the answers (JSON values) of all ranks, in order.

        Raises:
            RanksFailed: on some rank the action raised.
            CheckpointError: a rank did not answer.
        """
        own: Exception | None = None
        try:
            answer: dict[str, Any] = {"done": action()}
        except Exception as error:
            own = error
            answer = {"kind": type(error).__name__, "reason": str(error) or repr(error)}
        answers = self._exchange(answer)
        failures = [Failure(rank, a["kind"], a["reason"]) for rank, a in enumerate(answers) if "kind" in a]
        if failures:
            raise RanksFailed(failures) from own
        return [answer["done"] for answer in answers]

    def on_first(self, action: Callable[[], Any]) -> Any:
        """Act on rank 0 only; its answer, on every rank. Raises as `together` does."""
        return self.together(action if self.rank == 0 else lambda: None)[0]

    def _exchange(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if self._group is None:
            return [message]
        data = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        try:
            lengths = [int(length) for length in self._gather(torch.tensor([len(data)]))]
            padded = torch.zeros(max(lengths), dtype=torch.uint8)
            padded[: len(data)] = data
            answers = self._gather(padded)
        except RuntimeError as error:
            raise CheckpointError(f"rank {self.rank} lost touch with the other ranks: {error}") from error
        return [json.loads(bytes(a[:n].numpy())) for a, n in zip(answers, lengths, strict=True)]

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        device = "cuda" if "nccl" in dist.get_backend(self._group) else "cpu"
        tensor = tensor.to(device)
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor, group=self._group)
        _await_release(tensor, *gathered)
        return [each.cpu() for each in gathered]


def _await_release(*tensors: torch.Tensor) -> None:
    """Wait for the moment until the backend's thread has let go of them.

    Were it the last to hold one while the interpreter ends, it would abort the process.
    """
    end = time.monotonic() + 1.0
    while any(each.device.type == "cpu" and each._use_count() > 1 for each in tensors) and time.monotonic() < end:  # type: ignore[attr-defined]
        time.sleep(1e-5)
