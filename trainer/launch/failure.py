"""How a rank failed, told once: the first failing rank's own error is what the screen shows."""

import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gradwire.trainer.launch.exit_codes import ExitCode

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Kind = Literal["error", "stalled", "killed", "silent", "peer"]
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_KEY = "failure"
_WORKER = str(Path("trainer", "worker.py"))
_BROKEN_LINKS = ("Connection closed", "Connection reset", "Broken pipe", "remote peer", "Timed out waiting", "Socket")


@dataclass(frozen=True)
class Failure:
    """One rank's failure.

    Attributes:
        rank: The rank that failed.
        time: Seconds since the epoch.
        kind: `error` an exception; `stalled` named by the watchdog; `killed` by a signal; `silent` an exit code
            without an exception; `peer` only because another rank was gone.
        exit_code: What the command returns for it.
        message: One paragraph for the screen.
        trace: Traceback or stack, may be empty.
        brief: Whether the message alone says all that a user needs (errors of gradwire's own hierarchies).
    """

    rank: int
    time: float
    kind: Kind
    exit_code: int
    message: str
    trace: str = ""
    brief: bool = False

    def to_json(self) -> str:
        """The record as one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> "Failure":
        """The record that `to_json` wrote."""
        return Failure(**json.loads(text))

    def render(self) -> str:
        """What the screen shows."""
        if self.brief or not self.trace:
            return self.message
        heading = {
            "error": f"rank {self.rank} failed:",
            "peer": f"rank {self.rank} lost the connection to another rank, which left no word:",
            "stalled": self.message,
        }
        return f"{heading.get(self.kind, f'{self.message} The end of its log:')}\n\n{self.trace.rstrip()}"


def describe_error(error: BaseException, rank: int) -> Failure:
    """The failure that an exception in this process means."""
    peer = is_lost_peer(error)
    code = ExitCode.PEER_LOST if peer else exit_code_of(error)
    return Failure(
        rank=rank,
        time=time.time(),
        kind="peer" if peer else "error",
        exit_code=int(code),
        message=str(error) or type(error).__name__,
        trace="".join(traceback.format_exception(type(error), error, _beyond_worker(error.__traceback__))),
        brief=is_own(error),
    )


def _beyond_worker(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the worker's own first frames, which say nothing."""
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.endswith(_WORKER):
        trace = trace.tb_next
    return trace


def is_own(error: BaseException) -> bool:
    """Whether the error belongs to one of gradwire's closed hierarchies, whose messages say what to do."""
    return type(error).__module__.startswith("gradwire.") and bool(str(error))


def exit_code_of(error: BaseException, otherwise: int = ExitCode.FAILED) -> ExitCode:
    """The exit code of an error: its own `exit_code`, 2 for a mistake in the configuration, 3 for a bad checkpoint."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return ExitCode(own)
    by_base = {
        ("gradwire.trainer.config.errors", "ConfigError"): ExitCode.USAGE,
        ("gradwire.checkpoint.errors", "DamagedCheckpoint"): ExitCode.CHECKPOINT,
        ("gradwire.checkpoint.errors", "NoCheckpoint"): ExitCode.CHECKPOINT,
        ("gradwire.checkpoint.errors", "UnsupportedFormat"): ExitCode.CHECKPOINT,
    }
    for (module, name), code in by_base.items():
        base = getattr(sys.modules.get(module), name, None)
        if base is not None and isinstance(error, base):
            return code
    return ExitCode(otherwise)


def is_lost_peer(error: BaseException) -> bool:
    """Whether the error only says that another rank, or the way to it, is gone."""
    return any(_is_broken_link(each) for each in _chain(error))


def _is_broken_link(error: BaseException) -> bool:
    named = {"DistBackendError", "DistNetworkError", "DistStoreError", "CollectiveError"}  # torch's, ours
    names = {base.__name__ for base in type(error).__mro__}
    if names & named:
        return True
    text = str(error)
    return "RuntimeError" in names and ("gloo" in text or "NCCL" in text) and any(m in text for m in _BROKEN_LINKS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def killed(rank: int, code: int, log: str) -> Failure:
    """The failure of a rank whose process a signal ended, with the tail of its log."""
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    message = f"rank {rank} was killed by {name}."
    if name == "SIGKILL":
        message += " The kernel does that when memory runs out (see dmesg), an operator does it by hand."
    return Failure(rank, time.time(), "killed", int(ExitCode.FAILED), message, log)


def silent(rank: int, code: int, log: str) -> Failure:
    """The failure of a rank that left with an exit code and without an exception, with the tail of its log."""
    kind: Kind = "peer" if code == ExitCode.PEER_LOST else "silent"
    message, now = f"rank {rank} ended with exit code {code}.", time.time()
    if dump := re.search(r"^Timeout \(\d+:\d\d:\d\d.*", log, re.MULTILINE | re.DOTALL):  # written by faulthandler
        message = f"rank {rank} hangs: native code holds its interpreter (launch.watchdog)."
        return Failure(rank, now, "stalled", int(ExitCode.FAILED), message, dump.group())
    known = code if code in set(ExitCode) else ExitCode.FAILED  # somebody's os._exit knows nothing of ours
    return Failure(rank, now, kind, int(known), message, log)


def first_of(failures: Iterable[Failure]) -> Failure:
    """The failure that caused the others: the earliest one that is no mere echo of another rank's."""
    return min(failures, key=lambda failure: (failure.kind == "peer", failure.time, failure.rank))


def publish(store: "Store", failure: Failure) -> bool:
    """Tell the other ranks; True if this was the first failure that anybody published."""
    mine = failure.to_json().encode()
    return bool(store.compare_set(_KEY, "", mine.decode()) == mine)


def published(store: "Store", wait: float = 0.0) -> Failure | None:
    """The first failure that any rank published, waiting up to `wait` seconds for one."""
    deadline = time.monotonic() + wait
    while not store.check([_KEY]):
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)
    return Failure.from_json(store.get(_KEY))


def write_error_file(path: str | os.PathLike[str], failure: Failure) -> None:
    """Write the failure where the launcher looks for it, in torch elastic's own format with ours beside it."""
    extra = {"py_callstack": failure.trace, "timestamp": str(int(failure.time))}
    record = {"message": {"message": failure.message, "extraInfo": extra}, "gradwire": asdict(failure)}
    Path(path).write_text(json.dumps(record))


def read_error_file(path: str | os.PathLike[str]) -> Failure | None:
    """The failure that a worker left, or None if it left none."""
    try:
        record: dict[str, Any] = json.loads(Path(path).read_text())
        return Failure(**record["gradwire"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
