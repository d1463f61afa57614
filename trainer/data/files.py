"""Finding and reading text files: paths, globs, or URLs of anything that fsspec reaches."""

import glob
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer.data.errors import DataError

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """A file to read.

    Args:
        url: Its path or URL.
        version: Changes when the file does (size, time, entity tag; what the file system knows).
        size: In bytes as stored; None where unknown.
    """

    url: str
    version: str
    size: int | None

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes, about a megabyte at a time; what is compressed (.gz, .xz, .zst, …) is expanded.

        Raises:
            DataError: it cannot be read.
        """
        import fsspec

        try:
            with fsspec.open(self.url, "rb", compression="infer") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        except Exception as error:  # file systems raise what they like
            raise DataError(f"{self.url} cannot be read: {_reason(error)}") from error


def find(paths: str | Iterable[str]) -> list[Source]:
    """The files that paths, globs and URLs name, sorted within each, every file once.

    Raises:
        DataError: one of them names no file or cannot be reached, or all files are empty.
    """
    given = [paths] if isinstance(paths, str) else list(paths)
    if not given:
        raise DataError("no paths were given: name files, globs or URLs")
    found: dict[str, Source] = {}
    for each in given:
        for source in _remote(each) if "://" in each else _local(each):
            found.setdefault(source.url, source)
    if all(source.size == 0 for source in found.values()):
        names = ", ".join(list(found)[:3])
        raise DataError(f"{names} {'is' if len(found) == 1 else 'are'} empty: expected text")
    return list(found.values())


def digest(sources: Iterable[Source], *more: str) -> str:
    """A short name for the contents of files and whatever else decides what is made from them."""
    text = "\n".join([*more, *(f"{source.url}\t{source.version}" for source in sources)])
    return hashlib.blake2b(text.encode("utf-8", errors="surrogateescape"), digest_size=10).hexdigest()


def _local(pattern: str) -> list[Source]:
    expanded = Path(pattern).expanduser()
    names = [str(expanded)] if expanded.exists() else sorted(glob.glob(str(expanded), recursive=True))  # noqa: PTH207
    files = [path for name in names for path in ([Path(name)] if Path(name).is_file() else [])]
    if not files:
        kind = "is a folder" if expanded.is_dir() else "names no file"
        hint = f"{pattern.rstrip('/')}/**/*.txt" if expanded.is_dir() else "an existing file, a glob or a URL"
        raise DataError(f"{pattern} {kind} (in {Path.cwd()}): give {hint}")
    return [_local_source(path.resolve()) for path in files]


def _local_source(path: Path) -> Source:
    status = path.stat()
    return Source(str(path), f"{status.st_size} {status.st_mtime_ns}", status.st_size)


def _remote(url: str) -> list[Source]:
    import fsspec

    try:
        files, _, names = fsspec.get_fs_token_paths(url)
        entries = [(name, files.info(name)) for name in sorted(names)]
    except Exception as error:  # file systems raise what they like
        raise DataError(
            f"{url} cannot be reached: {_reason(error)}; check the address and the credentials, and for s3:// install "
            "'gradwire[s3]'"
        ) from error
    entries = [(name, info) for name, info in entries if info.get("type") != "directory"]
    if not entries:
        raise DataError(f"{url} names no file: check the address")
    return [Source(files.unstrip_protocol(name), _version(info), info.get("size")) for name, info in entries]


def _version(info: dict[str, Any]) -> str:
    known = ("size", "ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")
    return " ".join(f"{key}={info[key]}" for key in known if info.get(key) is not None)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error).strip() else type(error).__name__
