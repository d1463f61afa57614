"""Files that a command was told to write."""

from pathlib import Path

from gradwire.trainer.errors import WriteError


def check_writable(file: Path) -> None:
    """Refuse a file that cannot be written, and leave it as it is.

    Raises:
        OSError: it cannot; the error names it.
    """
    new = not file.exists()
    with file.open("ab"):
        pass
    if new:
        file.unlink()


def write(file: Path, content: bytes) -> None:
    """Write a file, once there is something to write.

    Raises:
        WriteError: it cannot be written after all, as on a full disk.
    """
    try:
        file.write_bytes(content)
    except OSError as error:
        raise WriteError(f"{file} cannot be written: {error.strerror}") from error
