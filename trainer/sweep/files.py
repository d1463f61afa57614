"""The files of a sweep, which several processes read while one writes."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Write a file at once and durably: readers see it as it was before or as it is then."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
