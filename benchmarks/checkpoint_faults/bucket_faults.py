"""Faults of an object store, at every request of a workload."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from benchmarks.checkpoint_faults.bucket import Bucket, BucketPlace, Client, Effect, Kind, Request, Stale, over
from benchmarks.checkpoint_faults.choices import EVERYTHING, Choice, kind_of
from benchmarks.checkpoint_faults.oracle import Verdict, judge
from benchmarks.checkpoint_faults.places import Course, Workload
from benchmarks.checkpoint_faults.tally import Tally

BURST = 6
FOREVER = 10**9
_NEVER = 10**9


@dataclass(frozen=True)
class BucketFault:
    """What goes wrong.

    Args:
        name: For the table.
        effect: What strikes.
        kinds: The requests that it strikes.
        times: How many such requests in a row.
        arrives: Requests after which a delayed change is applied; 0 for after the workload.
    """

    name: str
    effect: Effect | Stale
    kinds: tuple[str, ...]
    times: int = 1
    arrives: int = 0


_ALL = ("put", "get", "info", "list", "delete")
_CHANGES = ("put", "delete")
BUCKET_FAULTS = (
    BucketFault("burst of 503", "503", _ALL, BURST),
    BucketFault("503 from then on", "503", _ALL, FOREVER),
    BucketFault("time-outs before the request is applied", "time-out", _ALL, 2),
    BucketFault("time-out after the request was applied", "time-out after", _CHANGES),
    BucketFault("time-outs after the request was applied", "time-out after", _CHANGES, 3),
    BucketFault("time-out, the request is applied 1 request later", "time-out, applied later", _CHANGES, 1, 1),
    BucketFault("time-out, the request is applied 9 requests later", "time-out, applied later", _CHANGES, 1, 9),
    BucketFault("time-outs, the requests are applied 30 requests later", "time-out, applied later", _CHANGES, 9, 30),
    BucketFault("listing stale by 1 change", Stale(1), ("list",)),
    BucketFault("listing stale by 4 changes", Stale(4), ("list",)),
    BucketFault("listing stale by 15 changes", Stale(15), ("list",)),
    BucketFault("listings stale by 4 changes, from then on", Stale(4), ("list",), FOREVER),
    BucketFault("short read", "short", ("get",)),
    BucketFault("short reads from then on", "short", ("get",), FOREVER),
)


def name_of(kind: Kind) -> str:
    return f"{kind.name} on an object store"


def kill_everywhere(kind: Kind, workload: Workload, tally: Tally, choice: Choice = EVERYTHING) -> None:
    """The process is killed before and after each request that changes something, and that is chosen."""
    client = Client(Bucket())
    course = Course(lambda: over(client, kind), client.log)
    course.run(workload)
    changes = [number for number, request in enumerate(client.log) if request.changes]
    kinds = [kind_of(client.log[number]) for number in changes]
    chosen = {changes[number] for number in takewhile(lambda n: n < len(changes), choice.numbers(lambda: kinds))}
    bucket = Bucket()
    replay = Client(bucket)
    for number, request in enumerate(client.log):
        if number in chosen:
            judged(tally, "killed before a request", BucketPlace(bucket, kind), course, number, number, request)
        _again(replay, request)
        if number in chosen:
            judged(tally, "killed after a request", BucketPlace(bucket, kind), course, number, number, request)
            judged(tally, "killed after a request", BucketPlace(bucket, kind), course, number + 1, number, request)


def judged(
    tally: Tally, fault: str, place: BucketPlace, course: Course, known: int, number: int, request: Request
) -> None:
    tally.add(
        name_of(place.kind),
        fault,
        judge(place, course.at(known)).now,
        f"request {number} ({request.kind} {request.path})",
    )


def _again(client: Client, request: Request) -> None:
    try:
        if request.kind == "put":
            client.pipe_file(request.path, request.data)
        elif request.kind == "delete":
            client.rm_file(request.path)
    except OSError:
        return


def fail_requests(kind: Kind, workload: Workload, tally: Tally, choice: Choice = EVERYTHING) -> None:
    """Faults at every request that is chosen, while the process goes on."""
    for fault in BUCKET_FAULTS:
        for number in choice.numbers(lambda fault=fault: _kinds(kind, workload, fault)):
            found = fail_request(kind, workload, fault, number)
            if found is None:
                break
            request, verdict = found
            tally.add(name_of(kind), fault.name, verdict, f"request {number} ({request.kind} {request.path})")


def _kinds(kind: Kind, workload: Workload, fault: BucketFault) -> list[str]:
    """Kinds of the requests that a fault could strike first."""
    met: list[str] = []
    _run(kind, workload, fault, _NEVER, met)
    return met


def fail_request(kind: Kind, workload: Workload, fault: BucketFault, number: int) -> tuple[Request, Verdict] | None:
    """Let a fault strike from the `number`-th request of its kinds on; None where there are fewer."""
    bucket, course, struck = _run(kind, workload, fault, number, [])
    if struck is None:
        return None
    if course.untyped:
        return struck, Verdict("lost", f"an error without a class: {course.untyped}")
    for settle in (lambda: None, bucket.arrive):
        verdict = _settled(settle, BucketPlace(bucket, kind), course)
        if verdict.outcome != "survived":
            break
    return struck, verdict


def _run(
    kind: Kind, workload: Workload, fault: BucketFault, number: int, met: list[str]
) -> tuple[Bucket, Course, Request | None]:
    """The workload, the fault striking from the `number`-th of the requests that are met on; which one that was."""
    bucket, since = Bucket(), 0
    struck: Request | None = None
    one_at_a_time = threading.RLock()  # a process has several threads

    def hook(_: int, request: Request) -> Effect | Stale | None:
        nonlocal since, struck
        with one_at_a_time:
            since += struck is not None
            if fault.arrives and since == fault.arrives:
                bucket.arrive()
            if request.kind not in fault.kinds or (fault.effect == "short" and not bucket.objects.get(request.path)):
                return None
            met.append(kind_of(request))
            if not number < len(met) <= number + fault.times:
                return None
            struck = struck or request
            return fault.effect

    client = Client(bucket, hook)
    course = Course(lambda: over(client, kind), client.log)
    course.run(workload)
    return bucket, course, struck


def _settled(settle: Callable[[], None], place: BucketPlace, course: Course) -> Verdict:
    settle()
    return judge(place, course.last).now
