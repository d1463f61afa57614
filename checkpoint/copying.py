"""Copying snapshots between stores, one object in memory at a time, every byte proven on the way."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

import xxhash

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.known import Known
from gradwire.checkpoint.packs import SALT, PackRef
from gradwire.checkpoint.reading import reading
from gradwire.checkpoint.snapshot import Part, PartRef, read_part, read_parts
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.tensors import Chunk, StoredTensor


class Copier:
    """Copies snapshots from one store to another; what the snapshot before has there already is not copied.

    The copies' packs and parts get salts, and with them names, of their own: like what is saved, they can be none that
    somebody's clean-up, planned before, is about to remove.

    Args:
        source: Where snapshots are.
        target: Where they are copied to.
    """

    def __init__(self, source: Store, target: Store) -> None:
        self._source = source
        self._target = target
        self._known = Known()
        self._packs: dict[str, PackRef] = {}
        self._parts: list[Part] = []
        self._created: list[str] = []

    def go_on_from(self, commit: Commit | None) -> None:
        """Rely on what a snapshot has in the target: the one that the next copy follows there. None relies on nothing.

        Raises:
            CheckpointError: it cannot be read, and nothing is relied on.
        """
        self._known.replace([])
        if commit is not None:
            self._known.replace(read_parts(self._target, commit.parts))

    def copy(self, commit: Commit) -> tuple[PartRef, ...]:
        """Copy the packs and parts of a snapshot; what its copy's commit is to name.

        Raises:
            NoCheckpoint: the snapshot was removed meanwhile.
            DamagedCheckpoint: it is not whole.
            StoreError: a store did not answer, or did not take something.
        """
        self._packs, self._parts, self._created = {}, [], []
        self._known.check(self._target)
        with reading(self._source, commit):
            return tuple(self._copy_part(read_part(self._source, ref)) for ref in commit.parts)

    def committed(self) -> None:
        """What was copied last counts: the next copy may rely on it."""
        self._known.replace(self._parts)
        self._packs, self._parts, self._created = {}, [], []

    def discard(self) -> None:
        """Delete what was copied last; for a snapshot that is not committed and never will be.

        Raises:
            StoreError: something could not be deleted.
        """
        for name in self._created:
            self._target.delete(name)

    def is_copied(self, commit: Commit, present: Commit) -> bool:
        """Whether a snapshot of the target holds what one of the source holds.

        Raises:
            CheckpointError: one of them cannot be read.
        """
        pairs = zip(commit.parts, present.parts, strict=False)
        return commit.world_size == present.world_size and all(
            _content(read_part(self._source, mine)) == _content(read_part(self._target, theirs))
            for mine, theirs in pairs
        )

    def _copy_part(self, part: Part) -> PartRef:
        for pack in self._missing(part):
            self._packs[pack.name] = self._copy_pack(pack)
        packs: dict[PackRef, int] = {}

        def placed(chunk: Chunk, item_size: int) -> Chunk:
            pack, found = self._packs.get(part.packs[chunk.pack].name), chunk
            if pack is None:
                known = self._known.find((chunk.digest, chunk.length, item_size))
                assert known is not None, "the pack would have been copied"
                pack, found = known
            elif chunk.offset < SALT:
                raise DamagedCheckpoint(f"{self._source.url}: a chunk begins within the salt of its pack")
            return replace(found, pack=packs.setdefault(pack, len(packs)))

        tensors = tuple(
            replace(tensor, chunks=tuple(placed(chunk, tensor.dtype.itemsize) for chunk in tensor.chunks))
            for tensor in part.tensors
        )
        copied = replace(part, packs=tuple(packs), tensors=tensors)
        self._parts.append(copied)
        data = copied.to_bytes()
        ref = PartRef(part.rank, content_name(data), len(data))
        self._target.put_content("parts", data, ref.digest)
        self._created.append(ref.name)
        return ref

    def _missing(self, part: Part) -> Sequence[PackRef]:
        """The packs with a chunk that the target does not have."""
        found: dict[PackRef, None] = {}
        for tensor in part.tensors:
            for chunk in tensor.chunks:
                pack, key = part.packs[chunk.pack], (chunk.digest, chunk.length, tensor.dtype.itemsize)
                if pack.name not in self._packs and self._known.find(key) is None:
                    found[pack] = None
        return list(found)

    def _copy_pack(self, pack: PackRef) -> PackRef:
        where = f"{self._source.url}: {pack.name}"
        data = bytearray(self._source.get(pack.name, pack.size))
        if len(data) != pack.size:
            raise DamagedCheckpoint(f"{where} has {len(data)} of its {pack.size} bytes")
        if xxhash.xxh3_128_hexdigest(data) != pack.checksum:
            raise DamagedCheckpoint(f"{where} is altered: its bytes do not have the digest {pack.checksum}")
        data[:SALT] = secrets.token_bytes(SALT)
        view = memoryview(data)
        copied = PackRef(content_name(view), len(data), xxhash.xxh3_128_hexdigest(view))
        self._target.put_content("packs", view, copied.digest)
        self._created.append(copied.name)
        return copied


def _content(part: Part) -> tuple[object, ...]:
    tensors = tuple((each.dtype, each.shape, _digests(each)) for each in part.tensors)
    return part.rank, part.shared_tensors, part.shared, part.local, tensors


def _digests(tensor: StoredTensor) -> tuple[tuple[int, str], ...]:
    return tuple((chunk.length, chunk.digest) for chunk in tensor.chunks)
