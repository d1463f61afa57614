"""Reading back what a snapshot needs: every pack once, each of its bytes and each chunk in it proven."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import xxhash

from gradwire.checkpoint.commit import Commit
from gradwire.checkpoint.errors import DamagedCheckpoint
from gradwire.checkpoint.outline import Named, Outline, read_outline
from gradwire.checkpoint.packs import PackRef
from gradwire.checkpoint.store import Store, content_name
from gradwire.checkpoint.tensors import Chunk
from gradwire.checkpoint.unpacking import unpack

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackUse:
    """What lies in a pack.

    Args:
        pack: The pack.
        chunks: The chunks in it, each with the tensor that it belongs to.
    """

    pack: PackRef
    chunks: tuple[tuple[Chunk, Named], ...]


@dataclass(frozen=True)
class PackDamage:
    """What is wrong with a pack.

    Args:
        pack: The pack, as some part tells of it.
        problem: What was found.
        lost: The tensors that cannot be read any more; none where restoring meets nothing wrong.
    """

    pack: PackRef
    problem: str
    lost: tuple[Named, ...]


def uses_of(outlines: Iterable[Outline]) -> list[PackUse]:
    """The packs that snapshots need, each once, with everything that lies in them.

    Parts that tell of one pack differently, of which at most one is right, need two.
    """
    packs: set[PackRef] = set()
    chunks: dict[PackRef, list[tuple[Chunk, Named]]] = defaultdict(list)
    for outline in outlines:
        packs |= {pack for part in outline.parts for pack in part.packs}
        for tensor in outline.tensors:
            for chunk in tensor.stored.chunks:
                chunks[tensor.part.packs[chunk.pack]].append((chunk, tensor))
    return [PackUse(pack, tuple(chunks[pack])) for pack in sorted(packs, key=lambda pack: (pack.name, pack.checksum))]


def check_pack(store: Store, use: PackUse) -> PackDamage | None:
    """Read a pack and prove its bytes by its name and checksum, and each chunk in it by the chunk's digest; None where
    it is sound.

    Raises:
        StoreError: it could not be read.
    """
    pack = use.pack
    everything = tuple(dict.fromkeys(tensor for _, tensor in use.chunks))
    try:
        data = memoryview(store.get(pack.name, pack.size))
    except DamagedCheckpoint as error:
        return PackDamage(pack, str(error).removeprefix(f"{store.url}: "), everything)
    if len(data) != pack.size:
        return PackDamage(pack, f"{pack.name} has {len(data)} of its {pack.size} bytes", everything)
    lost = tuple(dict.fromkeys(tensor for chunk, tensor in use.chunks if not _proven(data, chunk, tensor)))
    problem = f"{pack.name} does not hold the chunks that its part says" if lost else ""
    if xxhash.xxh3_128_hexdigest(data) != pack.checksum:
        lost = lost or everything  # restoring takes nothing of it
        problem = f"{pack.name} does not have the digest that its part says, {pack.checksum}"
    if content_name(data) != pack.digest:
        problem = f"{pack.name} is altered: its bytes do not have the digest that names it"
    return PackDamage(pack, problem, lost) if problem else None


def _proven(data: memoryview, chunk: Chunk, tensor: Named) -> bool:
    try:
        unpack(data, chunk, tensor.stored.dtype, "a pack")
    except DamagedCheckpoint:
        return False
    return True


def damages(
    store: Store, uses: Iterable[PackUse], progress: Callable[[int], None] = lambda size: None
) -> Iterator[PackDamage]:
    """What is wrong with packs; one of them is in memory at a time.

    Args:
        store: Where they are.
        uses: The packs.
        progress: Told the bytes of each pack that was read.

    Raises:
        StoreError: one could not be read.
    """
    for use in uses:
        damage = check_pack(store, use)
        progress(use.pack.size)
        if damage is not None:
            yield damage


def verify(store: Store, commit: Commit) -> Outline:
    """Prove that a snapshot is whole by reading everything that it needs.

    Raises:
        DamagedCheckpoint: it is not.
        UnsupportedFormat: it was written in a newer format.
        StoreError: something could not be read.
    """
    outline = read_outline(store, commit)
    for damage in damages(store, uses_of([outline])):
        if damage.lost:
            raise DamagedCheckpoint(f"{store.url}: {damage.problem}")
    return outline


def newest_whole(store: Store, commits: Iterable[Commit]) -> Commit | None:
    """The first of some commits that is whole, or None where none is.

    Raises:
        UnsupportedFormat: one was written in a newer format.
        StoreError: something could not be read.
    """
    for commit in commits:
        try:
            verify(store, commit)
        except DamagedCheckpoint as error:
            log.warning("%s is not whole: %s", commit.name, error)
        else:
            return commit
    return None
