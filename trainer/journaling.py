"""The journal of a run: what each update consumed, kept beside training. How it is replayed: trainer/replaying.py."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor
from torch.optim import Optimizer

from gradwire.checkpoint import Checkpointer, Commit, Slice
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.journal import Scalar
from gradwire.checkpoint.journal_writer import Durability, JournalWriter
from gradwire.checkpoint.tensors import pieces
from gradwire.checkpoint.tree import encode
from gradwire.comm import Encoded
from gradwire.trainer.state import progress
from gradwire.trainer.strategies import Reduced
from gradwire.trainer.strategies.sharding import local
from gradwire.trainer.update import Outcome

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

DIGEST_EVERY = 20  # updates between digests of the state in the journal
_CHUNK = 16 * 2**20
_READ = 200e6  # bytes of gradients a second that are read, proven and decoded
_FRESH = 0.1  # weight of the latest update in what one takes to replay
_PLAIN = (bool, int, float, str)
ENCODED = "encoded:"  # and the codec: what tells that the bytes of a gradient are not its elements


class Journaling:
    """Keeps a run's journal.

    Args:
        trainer: Whose.
        checkpointer: Its store.
        durability: With `update` all updates are durable before the gradients of the next one are reduced; with
            `interval` those of the last seconds may be lost.
        interval: These seconds.
        recover_within: Seconds that loading a snapshot and replaying what follows may take; a snapshot is due when it
            would take longer. None leaves that to the configuration.
    """

    def __init__(
        self,
        trainer: "Trainer",
        checkpointer: Checkpointer,
        durability: Durability,
        interval: float,
        recover_within: float | None,
    ) -> None:
        self._trainer = trainer
        self._checkpointer = checkpointer
        self._durability: Durability = durability
        self._interval = interval
        self._recover_within = recover_within
        self._writer: JournalWriter | None = None
        self._carried = False  # whether ranks have something of their own that the journal does not hold
        self._base = -1
        self._saved = -1  # the update of the newest snapshot, which may be on its way still
        self._per_update = self._load = 0.0  # seconds that recovery takes for an update, and for the snapshot

    @property
    def begun(self) -> bool:
        return self._writer is not None

    def begin(self, base: Commit, update: int) -> None:
        """Journal what follows an update. A collective."""
        self._carried = self._trainer.strategy.carries()
        self._writer = self._checkpointer.journal(base, update, self._durability, self._interval)
        self._base = self._saved = base.update

    def saving(self, update: int) -> None:
        """A snapshot has been begun."""
        self._saved = update

    def rebase(self, base: Commit, seconds: float) -> None:
        """A newer snapshot is durable, so many seconds after it was begun; reading it will hardly take longer."""
        self._load = seconds
        if self._writer is not None and base.update > self._base:
            self._writer.rebase(base)
            self._base = base.update

    @property
    def due(self) -> bool:
        """Whether recovery would take longer than it may, so that a snapshot is due; the first rank's answer counts.

        Where loading alone takes that long, no snapshot helps: then replaying may take as long as loading.
        """
        if self._recover_within is None or self._writer is None:
            return False
        replaying = (self._writer.last - self._saved) * self._per_update
        return replaying > max(self._recover_within - self._load, self._load)

    def wait(self, update: int) -> None:
        """Before the gradients of the next update are reduced: on every rank, the last one's are durable."""
        if self._writer is not None and self._durability == "update" and self._writer.last == update:
            self._writer.wait(update)

    def append(self, outcome: Outcome) -> None:
        """Keep the update that the trainer has just done."""
        if self._writer is None:
            return
        trainer, update = self._trainer, self._trainer.clock.updates
        reduced = trainer.strategy.reduced()
        tensors = {f"gradient/{each.bucket}/{n}": _blob(each, reduced) for n, each in enumerate(reduced.shares)}
        tensors |= {f"buffer/{name}": Blob(buffer) for name, buffer in trainer.model.named_buffers()}
        small = {"shared": progress(trainer), "own": trainer.strategy.position()}
        nodes = encode(small, lambda path, tensor: _kept(tensors, tensor), "progress")
        scalars: dict[str, Scalar] = {
            "optimizer": implementation(trainer.optimizer),
            "layout": trainer.strategy.layout,
            "members": trainer.members,
            "groups": json.dumps([_hyperparameters(group) for group in trainer.optimizer.param_groups]),
            "targets": outcome.targets,
            "divisor": outcome.divisor,
            "shrinking": trainer.updater.shrinking(outcome),
            "kept": not outcome.skipped,
            "presence": reduced.presence.hex(),
            "carried": self._carried,
            "progress": json.dumps(nodes),
        }
        digest = state_digest(trainer) if update % DIGEST_EVERY == 0 else None
        self._writer.append(update, scalars, tensors, digest)
        trainer.strategy.give_back(reduced)
        nbytes = sum(blob.data.nbytes for blob in tensors.values()) * trainer.strategy.world_size
        seconds = trainer.updater.applying + nbytes / _READ
        self._per_update += (seconds - self._per_update) * (1.0 if self._per_update == 0 else _FRESH)

    def close(self) -> None:
        """Make everything durable. Raises as JournalWriter does."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def abandon(self) -> None:
        """End without writing what waits."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.abandon()


def _blob(share: Encoded, reduced: Reduced) -> Blob:
    if share.codec is None:
        return Blob(share.payload.view(reduced.dtypes[share.bucket]), share.ranges)
    return Blob(share.payload, share.ranges, f"{ENCODED}{share.codec}")


def _kept(tensors: dict[str, Blob], tensor: Tensor | Slice) -> int:
    assert isinstance(tensor, Tensor), "what is counted is in no slices"
    index = sum(name.startswith("small/") for name in tensors)
    tensors[f"small/{index}"] = Blob(tensor)
    return index


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimizer's group is told beside its parameters; floats keep their bits in JSON."""
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in group.items()}
    return {name: value for name, value in plain.items() if name != "params" and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN) and not (isinstance(value, float) and not math.isfinite(value))


def implementation(optimizer: Optimizer) -> str:
    """What computes an update: another one may round otherwise."""
    kind, device = type(optimizer), next(iter(optimizer.param_groups[0]["params"])).device.type
    return f"{kind.__module__}.{kind.__qualname__} of torch {torch.__version__} on {device}"


def state_digest(trainer: "Trainer") -> str:
    """The xxh3-128 of this rank's trained parameters and of the optimizer's tensors, 32 hexadecimal digits."""
    whole = xxhash.xxh3_128()
    tensors = trainer.strategy.tensors(trainer.model)
    states = trainer.strategy.optimizer_state(trainer.model, trainer.optimizer)
    for name, parameter in trainer.model.named_parameters():
        if not parameter.requires_grad:
            continue
        for key, value in [("", tensors[name]), *sorted(states.get(name, {}).items())]:
            whole.update(f"{name}.{key} ".encode())
            if isinstance(value, Tensor):
                for piece in pieces(local(value), _CHUNK):
                    whole.update(piece)
            else:
                whole.update(repr(value).encode())
    return whole.hexdigest()
