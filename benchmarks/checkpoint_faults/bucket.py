"""An object store in memory that answers late, wrongly or not at all where it is told to."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.checkpoint_faults.contenders import Session
from benchmarks.checkpoint_faults.disk import SECONDS
from benchmarks.checkpoint_faults.gradwire_sessions import GradwireSession
from benchmarks.checkpoint_faults.places import Hook
from gradwire.checkpoint.remote import RemoteObjects
from gradwire.checkpoint.retry import Retry

ROOT = "bucket/run"
Effect = Literal["503", "time-out", "time-out after", "time-out, applied later", "short"]


@dataclass(frozen=True)
class Request:
    """One request.

    Args:
        kind: What.
        path: Of the object or folder.
        data: What is put.
    """

    kind: Literal["put", "get", "info", "list", "delete"]
    path: str
    data: bytes = b""

    @property
    def changes(self) -> bool:
        return self.kind in ("put", "delete")


@dataclass(frozen=True)
class Stale:
    """An effect on a listing: it shows what was there so many changes ago.

    Args:
        age: Changes.
    """

    age: int


@dataclass
class Bucket:
    """The objects, as they are and as they were.

    Args:
        objects: Bytes and time by path.
        past: The paths after each change so far.
        delayed: Changes that were accepted and are still on their way.
        time: Seconds since 1970; some pass with every object that is put.
    """

    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    past: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    delayed: list[Callable[[], None]] = field(default_factory=list)
    time: float = field(default_factory=time.time)
    lock: Any = field(default_factory=threading.RLock)

    def copy(self) -> "Bucket":
        return Bucket(dict(self.objects), list(self.past), time=self.time)

    def put(self, path: str, data: bytes, *, create: bool) -> None:
        if create and path in self.objects:
            raise FileExistsError(path)
        self.time += SECONDS
        self.objects[path] = data, self.time
        self.past.append(frozenset(self.objects))

    def delete(self, path: str) -> None:
        if path not in self.objects:
            raise FileNotFoundError(path)
        del self.objects[path]
        self.past.append(frozenset(self.objects))

    def arrive(self) -> None:
        """Let what was delayed be done now; what it would have answered nobody hears."""
        delayed, self.delayed = self.delayed, []
        for change in delayed:
            try:
                change()
            except OSError:
                continue


class Client:
    """A process's connection to a bucket: what RemoteObjects uses of fsspec.

    Args:
        bucket: Where requests go.
        hook: Called before each request with its number; the effect that it returns strikes.
    """

    def __init__(self, bucket: Bucket, hook: Hook | None = None) -> None:
        self._bucket = bucket
        self._hook = hook
        self.log: list[Request] = []

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        self._ask(Request("put", path, value), lambda _: self._bucket.put(path, value, create=mode == "create"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        data: bytes = self._ask(Request("get", path), lambda _: self._found(path)[0])[start:end]
        return data

    def info(self, path: str) -> dict[str, Any]:
        data, created = self._ask(Request("info", path), lambda _: self._found(path))
        return {"name": path, "size": len(data), "created": created, "type": "file"}

    def ls(self, path: str, detail: bool = True) -> list[str]:
        start = path.rstrip("/") + "/"

        def listed(effect: object) -> list[str]:
            age = effect.age if isinstance(effect, Stale) else 0
            paths = self._bucket.past[max(len(self._bucket.past) - 1 - age, 0)]
            found = {start + name[len(start) :].partition("/")[0] for name in paths if name.startswith(start)}
            if not found:
                raise FileNotFoundError(path)
            return sorted(found)

        names: list[str] = self._ask(Request("list", path), listed)
        return names

    def rm_file(self, path: str) -> None:
        self._ask(Request("delete", path), lambda _: self._bucket.delete(path))

    def invalidate_cache(self, path: str | None = None) -> None: ...

    def _found(self, path: str) -> tuple[bytes, float]:
        if path not in self._bucket.objects:
            raise FileNotFoundError(path)
        return self._bucket.objects[path]

    def _ask(self, request: Request, answer: Callable[[object], Any]) -> Any:
        with self._bucket.lock:
            number = len(self.log)
            self.log.append(request)
        effect = self._hook(number, request) if self._hook else None  # not locked: another process may act meanwhile
        with self._bucket.lock:
            return self._answer(request, effect, answer)

    def _answer(self, request: Request, effect: Any, answer: Callable[[object], Any]) -> Any:
        silence = TimeoutError(f"no answer to {request.kind} {request.path}")
        if effect == "503":
            raise OSError(16, "Please reduce your request rate.")
        if effect == "time-out":
            raise silence
        if effect == "time-out, applied later":
            self._bucket.delayed.append(lambda: answer(None))
            raise silence
        result = answer(effect)
        if effect == "time-out after":
            raise silence
        return result[: len(result) // 2] if effect == "short" else result


class _Time:
    """Seconds that pass by waiting only."""

    def __init__(self) -> None:
        self._now = 0.0

    def wait(self, seconds: float) -> None:
        self._now += seconds

    def now(self) -> float:
        return self._now


Kind = type[GradwireSession]


@dataclass(frozen=True)
class BucketPlace:
    """A prefix of a bucket.

    Args:
        bucket: The bucket.
        kind: What its processes do.
    """

    bucket: Bucket
    kind: Kind = GradwireSession

    def process(self, hook: Hook | None = None) -> Session:
        return over(Client(self.bucket, hook), self.kind)

    def copy(self) -> "BucketPlace":
        return BucketPlace(self.bucket.copy(), self.kind)

    def after_power_cut(self) -> "BucketPlace":
        return self.copy()  # what was answered is durable


def over(client: Client, kind: Kind = GradwireSession) -> GradwireSession:
    """A process that saves through a client; it waits for the retries without taking time."""
    time_ = _Time()
    retry = Retry(sleep=time_.wait, clock=time_.now)
    return kind(lambda: RemoteObjects(client, ROOT, retry))
