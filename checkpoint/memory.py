"""A tier in the memory of the host, which survives processes but no reboot: a folder of /dev/shm."""

import hashlib
import os
import shutil
import stat
from pathlib import Path

from gradwire.checkpoint.errors import StoreError

MEMORY = "memory"
SHARED_MEMORY = Path("/dev/shm")


def folder_for(url: str) -> Path:
    """The folder in which snapshots wait for the store at a URL: of this user and this store alone. Nothing is made.

    Raises:
        StoreError: this host has no /dev/shm, or somebody else has made that folder.
    """
    if not SHARED_MEMORY.is_dir():
        raise StoreError(
            f"{MEMORY}: this host has no {SHARED_MEMORY}. Name a folder on a local disk as the tier instead"
        )
    place = url if "://" in url or "::" in url else str(Path(url).resolve())
    folder = SHARED_MEMORY / f"gradwire-{os.getuid()}-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    _check(folder)
    return folder


def make(folder: Path) -> None:
    """Make the folder so that only this user gets at it.

    Raises:
        StoreError: it cannot be made, or somebody else was faster.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror}. Name a folder on a disk instead") from error
    _check(folder)


def free(folder: Path) -> None:
    """Give the memory back."""
    shutil.rmtree(folder, ignore_errors=True)


def _check(folder: Path) -> None:
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise StoreError(f"{folder} is not a folder of this user's alone (0700): remove it, or name another tier")
