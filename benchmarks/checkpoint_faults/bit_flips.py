"""One flipped bit in each region of each stored object: who notices?"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import safetensors.torch

from benchmarks.checkpoint_faults.contenders import FOLDER, Altered, TorchDcp, TorchSaveRenamed, checked
from benchmarks.checkpoint_faults.disk import Contents, Disk
from benchmarks.checkpoint_faults.journal_sessions import journal_on_disk
from benchmarks.checkpoint_faults.places import OpenSession
from benchmarks.checkpoint_faults.states import tensors_at
from gradwire.checkpoint.local import LocalObjects
from gradwire.checkpoint.store import Store
from gradwire.checkpoint.tags import Tags

REGIONS = 400


class Safetensors:
    """safetensors.torch.save into one file."""

    name = "safetensors"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = FOLDER / "model.safetensors"

    def save(self, update: int) -> None:
        file = self._disk.create(self._path)
        self._disk.write(file, memoryview(safetensors.torch.save(tensors_at(update))))
        self._disk.close(file)

    def restore(self) -> int | None:
        loaded = safetensors.torch.load(self._disk.read(self._path, 2**40))
        if set(loaded) != set(tensors_at(0)):
            raise Altered("other names came back")
        return checked({name: loaded[name] for name in tensors_at(0)}, "the file")

    def verify(self) -> list[str]:
        return []

    def expects(self, error: Exception) -> bool:
        return True

    def end(self) -> None: ...


@dataclass
class Flips:
    """What came of the flips in one kind of object.

    Args:
        contender: Whose.
        region: Where.
        flipped: Bits flipped, each alone.
        detected: Flips that were reported.
        altered: Flips after which other tensors were returned, without a word.
        harmless: Flips of bits that nothing depends on.
    """

    contender: str
    region: str
    flipped: int = 0
    detected: int = 0
    altered: int = 0
    harmless: int = 0


def all_flips(regions: int = REGIONS) -> list[Flips]:
    """Flips in every object of gradwire's store, and in the files of others."""
    found = list(_in_store(regions))
    for contender in (TorchSaveRenamed, TorchDcp, Safetensors):
        found += _in_files(contender.name if contender is not TorchSaveRenamed else "torch.save", contender, regions)
    return found


def _in_store(regions: int) -> Iterator[Flips]:
    contents = Contents.with_folder(str(FOLDER))
    session = journal_on_disk(Disk(contents))
    session.save(4)
    session.end()
    store = Store("simulated", LocalObjects(FOLDER, Disk(contents)))
    Tags(store).create("best", session.checkpointer.commits()[-1])
    rows: dict[str, Flips] = {}
    for path in sorted(path for path, inode in contents.names.items() if inode):
        kind = path.removeprefix(f"{FOLDER}/").partition("/")[0]
        row = rows.setdefault(kind, Flips("gradwire", kind))
        size = len(contents.files[contents.names[path]].data)
        for bit in _bits(range(size), regions, seed=path):
            _judge(row, journal_on_disk, _flipped(contents, path, bit))
    yield from rows.values()


def _in_files(name: str, open_session: OpenSession, regions: int) -> Iterator[Flips]:
    contents = Contents.with_folder(str(FOLDER))
    open_session(Disk(contents)).save(1)
    files = [path for path, inode in contents.names.items() if inode]
    everywhere, tensors = Flips(name, "anywhere in the files"), Flips(name, "in a tensor's bytes")
    payload = tensors_at(1)["weight"].numpy().tobytes()
    for path in files:
        data = contents.files[contents.names[path]].data
        for bit in _bits(range(len(data)), regions, seed=path):
            _judge(everywhere, open_session, _flipped(contents, path, bit))
        start = data.find(payload)
        if start >= 0:
            for bit in _bits(range(start, start + len(payload)), regions, seed=path):
                _judge(tensors, open_session, _flipped(contents, path, bit))
    yield from (everywhere, tensors)


def _judge(row: Flips, open_session: OpenSession, contents: Contents) -> None:
    session = open_session(Disk(contents))
    row.flipped += 1
    try:
        session.restore()
        reported = bool(session.verify())
    except Altered:
        row.altered += 1
    except Exception as error:
        if not session.expects(error):
            raise
        row.detected += 1
    else:
        row.detected += reported
        row.harmless += not reported


def _bits(positions: range, regions: int, seed: str) -> Iterator[int]:
    """A random bit in each of so many equal regions, as its number from the beginning of the file."""
    randomness = random.Random(seed)
    length = len(positions)
    for region in range(min(regions, length)):
        start, stop = region * length // regions, (region + 1) * length // regions
        if regions > length:
            start, stop = region, region + 1
        yield 8 * (positions.start + randomness.randrange(start, stop)) + randomness.randrange(8)


def _flipped(contents: Contents, path: str, bit: int) -> Contents:
    changed = contents.copy()
    inode = changed.names[path]
    data = bytearray(changed.files[inode].data)
    data[bit // 8] ^= 1 << bit % 8
    changed.files[inode] = replace(changed.files[inode], data=bytes(data), durable=bytes(data))
    return changed


def flips_table(flips: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| contender | where | flipped | detected | other tensors returned | harmless |",
        "|---|---|---|---|---|---|",
    ]
    columns = ("contender", "region", "flipped", "detected", "altered", "harmless")
    lines += [f"| {' | '.join(str(row[column]) for column in columns)} |" for row in flips]
    return "\n".join(lines) + "\n"
