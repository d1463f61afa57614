"""The journal of a run: what each update consumed, kept beside training and replayed on the newest snapshot."""

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.checkpoint import Checkpointer, Commit
from gradwire.checkpoint.blobs import Blob
from gradwire.checkpoint.journal import Entry, Scalar
from gradwire.checkpoint.journal_writer import Durability, JournalWriter
from gradwire.checkpoint.tensors import pieces
from gradwire.checkpoint.tree import decode, encode
from gradwire.comm import Encoded
from gradwire.trainer.errors import ReplayError
from gradwire.trainer.state import progress, put_back_own, put_back_progress
from gradwire.trainer.strategies import Reduced
from gradwire.trainer.update import Outcome

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")
DIGEST_EVERY = 20  # updates between digests of the state in the journal
_CHUNK = 16 * 2**20
_READ = 200e6  # bytes of gradients a second that are read, proven and decoded
_FRESH = 0.1  # weight of the latest update in what one takes to replay
_PLAIN = (bool, int, float, str)
_ENCODED = "encoded:"


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
        self._base = -1
        self._saved = -1  # the update of the newest snapshot, which may be on its way still
        self._per_update = self._load = 0.0  # seconds that recovery takes for an update, and for the snapshot

    @property
    def begun(self) -> bool:
        return self._writer is not None

    def begin(self, base: Commit, update: int) -> None:
        """Journal what follows an update. A collective."""
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
        """Whether recovery would take longer than it may, so that a snapshot is due; the first rank's answer counts."""
        if self._recover_within is None or self._writer is None:
            return False
        return self._load + (self._writer.last - self._saved) * self._per_update > self._recover_within

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
        small = {"shared": progress(trainer), "own": trainer.strategy.state_dict()}
        nodes = encode(small, lambda path, tensor: _kept(tensors, tensor), "progress")
        scalars: dict[str, Scalar] = {
            "optimizer": implementation(trainer.optimizer),
            "groups": json.dumps([_hyperparameters(group) for group in trainer.optimizer.param_groups]),
            "targets": outcome.targets,
            "divisor": outcome.divisor,
            "shrinking": trainer.updater.shrinking(outcome),
            "kept": not outcome.skipped,
            "presence": reduced.presence.hex(),
            "progress": json.dumps(nodes),
        }
        digest = state_digest(trainer.model, trainer.optimizer) if update % DIGEST_EVERY == 0 else None
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


def replay(trainer: "Trainer", checkpointer: Checkpointer, base: Commit, last: int | None = None) -> int:
    """Do again what the journal holds after a restored snapshot, up to an update; the update reached. A collective.

    Raises:
        ReplayError: the replayed state is not the one that was journalled, or it cannot be replayed here. The trainer's
            state is of no use then: restore the snapshot again.
    """
    recovery = checkpointer.recovery(base)
    started, reached, held = time.perf_counter(), base.update, None
    for update, entries in recovery.entries(last):
        _replay_one(trainer, update, entries)
        reached, held = update, entries
    if held is not None:
        _put_back_small(trainer, held)
        checkpointer.continue_at(recovery, reached)
        seconds = time.perf_counter() - started
        log.info("replayed updates %d to %d from the journal in %.1f s", base.update + 1, reached, seconds)
    return reached


def _replay_one(trainer: "Trainer", update: int, entries: Sequence[Entry]) -> None:
    scalars = entries[0].scalars
    here = implementation(trainer.optimizer)
    if scalars["optimizer"] != here:
        raise ReplayError(f"update {update} was made by {scalars['optimizer']}, and this is {here}")
    trainer.strategy.put_back([_reduced(entry) for entry in entries])
    groups = trainer.optimizer.param_groups
    configured = [dict(group) for group in groups]
    for group, values in zip(groups, json.loads(str(scalars["groups"])), strict=True):
        group.update({name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    trainer.updater.replay(
        int(scalars["targets"]), int(scalars["divisor"]), float(scalars["shrinking"]), kept=bool(scalars["kept"])
    )
    for group, values in zip(groups, configured, strict=True):
        group.update(values)
    own = entries[trainer.strategy.rank if len(entries) == trainer.strategy.world_size else 0]
    for name, buffer in trainer.model.named_buffers():
        buffer.copy_(own.tensors[f"buffer/{name}"].data)
    if trainer.average is not None and scalars["kept"]:
        trainer.average.update()
    if own.digest is not None and own.digest != state_digest(trainer.model, trainer.optimizer):
        raise ReplayError(f"after update {update} the replayed state is another than the one that was journalled")


def _put_back_small(trainer: "Trainer", entries: Sequence[Entry]) -> None:
    small = [
        decode(json.loads(str(entry.scalars["progress"])), lambda n, e=entry: e.tensors[f"small/{n}"].data, "progress")  # type: ignore[misc]
        for entry in entries
    ]
    put_back_progress(trainer, small[0]["shared"])
    moved = len(entries) != trainer.strategy.world_size
    own = {} if moved else small[trainer.strategy.rank]["own"]
    put_back_own(trainer, own, lambda: [each["own"] for each in small], moved)


def _blob(share: Encoded, reduced: Reduced) -> Blob:
    if share.codec is None:
        return Blob(share.payload.view(reduced.dtypes[share.bucket]), share.ranges)
    return Blob(share.payload, share.ranges, f"{_ENCODED}{share.codec}")


def _reduced(entry: Entry) -> Reduced:
    shares, dtypes = [], {}
    for name, blob in entry.tensors.items():
        kind, _, place = name.partition("/")
        if kind == "gradient":
            bucket = int(place.partition("/")[0])
            codec = blob.coding.removeprefix(_ENCODED) if blob.coding.startswith(_ENCODED) else None
            shares.append(Encoded(bucket, codec, blob.ranges, blob.data.view(torch.uint8)))
            dtypes[bucket] = blob.data.dtype
    presence = bytes.fromhex(str(entry.scalars["presence"]))
    return Reduced(tuple(shares), tuple(dtypes[bucket] for bucket in sorted(dtypes)), presence)


def _kept(tensors: dict[str, Blob], tensor: Tensor) -> int:
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


def state_digest(model: nn.Module, optimizer: Optimizer) -> str:
    """The xxh3-128 of parameters and of the optimizer's tensors, 32 hexadecimal digits."""
    whole = xxhash.xxh3_128()
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for key, value in [("", parameter), *sorted(state.items())]:
            whole.update(f"{name}.{key} ".encode())
            if isinstance(value, Tensor):
                for piece in pieces(value, _CHUNK):
                    whole.update(piece)
            else:
                whole.update(repr(value).encode())
    return whole.hexdigest()
