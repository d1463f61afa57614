"""What a disk may hold after a crash: the process was killed, or the power went."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.checkpoint_faults.disk import Contents, File, Operation, rename

ALL_BYTES = "all bytes"
TEARS = ("no byte", "one byte", "half", "all but one byte")


def torn(data: bytes, how: str) -> bytes:
    """The beginning of what was written."""
    length = {
        "durable": 0,
        "no byte": 0,
        "one byte": 1,
        "half": len(data) // 2,
        "all but one byte": max(len(data) - 1, 0),
        ALL_BYTES: len(data),
    }
    return bytes(len(data)) if how == "zeros" else data[: length[how]]


def kills(log: Sequence[Operation], contents: Contents) -> Iterator[tuple[int, str, Contents]]:
    """A process is killed before and after each operation, and within each write; what it wrote before can be read."""
    for number, operation in enumerate(log):
        yield number, "before", contents.copy()
        if operation.kind == "write":
            for how in TEARS:
                cut = contents.copy()
                cut.apply(replace(operation, data=torn(operation.data, how)))
                yield number, f"torn: {how}", cut
        contents.apply(operation)
        yield number, "after", contents.copy()


def power_cuts(
    log: Sequence[Operation], contents: Contents, choices: int, seed: int
) -> Iterator[tuple[int, str, Contents]]:
    """The power goes after each operation. Of what is not durable, nothing, each piece alone, all but each, everything,
    and `choices` random subsets are there; the bytes of files whole, in part, or as zeros."""
    for number, operation in enumerate(log):
        contents.apply(operation)
        randomness = random.Random(f"{seed}-{number}")
        for label, cut in cuts(contents, choices, randomness):
            yield number, label, cut


def cuts(contents: Contents, choices: int, randomness: random.Random) -> Iterator[tuple[str, Contents]]:
    """What may be there after a power cut now."""
    pending = contents.pending
    unsynced = [inode for inode, file in contents.files.items() if file.data != file.durable]
    everything = set(range(len(pending)))
    yield "everything lost", cut_off(contents, set(), {})
    if contents.ordered:  # what is lost is lost from some moment on
        for kept in range(1, len(pending) + 1):
            yield "some of it lost", cut_off(contents, set(range(kept)), {})
            yield "some of it lost", cut_off(contents, set(range(kept)), dict.fromkeys(unsynced, ALL_BYTES))
        return
    if not pending and not unsynced:
        return
    for how in ("durable", "no byte", "one byte", "half", "all but one byte", "zeros", ALL_BYTES):
        yield "some of it lost", cut_off(contents, everything, dict.fromkeys(unsynced, how))
    for index in everything:
        yield "some of it lost", cut_off(contents, {index}, dict.fromkeys(unsynced, ALL_BYTES))
        yield "some of it lost", cut_off(contents, everything - {index}, {})
    for _ in range(choices):
        kept = {index for index in everything if randomness.random() < 0.5}
        bytes_ = {inode: randomness.choice(("durable", "zeros", ALL_BYTES, *TEARS)) for inode in unsynced}
        yield "some of it lost", cut_off(contents, kept, bytes_)


def cut_off(contents: Contents, kept: set[int], written: Mapping[int, str]) -> Contents:
    """What is there after a power cut.

    Args:
        contents: What was there before.
        kept: Which of the pending changes of names are durable after all.
        written: How much of a file's bytes that were not durable is there, by inode; the others are as durable.
    """
    names = dict(contents.durable)
    for index in sorted(kept):
        rename(names, contents.pending[index])
    reachable: dict[str, int] = {}
    for path, inode in sorted(names.items()):  # a folder stands before what is in it
        if path == "/" or reachable.get(path.rpartition("/")[0] or "/") == 0:
            reachable[path] = inode
    files = {
        inode: _file(contents.files[inode], written.get(inode, "durable")) for inode in reachable.values() if inode
    }
    return Contents(reachable, dict(reachable), [], files, contents.ordered, contents.time)


def _file(file: File, how: str) -> File:
    if how == "durable" or file.data == file.durable:
        data = file.durable
    elif file.data.startswith(file.durable):
        data = file.durable + torn(file.data[len(file.durable) :], how)
    else:
        data = torn(file.data, how)
    return File(data, data, modified=file.modified)
