"""Torch elastic's agent for a host of an elastic run: workers end and start again with whatever hosts there are."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from signal import SIGTERM
from typing import Any, Protocol

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState

from gradwire.trainer.launch import failure as failures
from gradwire.trainer.launch.agent import Agent
from gradwire.trainer.launch.context import SAVED
from gradwire.trainer.launch.elastic import Call, Verdict
from gradwire.trainer.launch.environment import ROUND
from gradwire.trainer.launch.errors import HostsGoneError, RunOverError, StoppedBeforeStart
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure
from gradwire.trainer.launch.fork_server import ForkServer
from gradwire.trainer.launch.signals import ControllerSignals


class Company(Protocol):
    """A host among the others: see Leader and Follower."""

    host: int

    @property
    def round(self) -> int: ...

    @property
    def members(self) -> tuple[tuple[int, int], ...]: ...

    def look(self) -> Call | None: ...

    def failed(self, failure: Failure) -> Verdict: ...

    def stopped(self) -> Verdict: ...

    def depart(self) -> None: ...

    def finish(self, exit_code: int, failure: Failure | None = None) -> None: ...

    def leave(self, patience: float) -> None: ...

    def read(self, key: str) -> str | None: ...

    def regroup(self) -> None: ...


class ElasticAgent(Agent):
    """Starts this host's workers round after round; see Agent."""

    _meeting: Company  # type: ignore[assignment]

    def __init__(
        self,
        spec: WorkerSpec,
        meeting: Company,
        ranks: ForkServer,
        error_files: str,
        signals: ControllerSignals,
        grace: float,
        log_tail: Callable[[int], str],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(spec, meeting, ranks, error_files, signals, grace, log_tail, say)  # type: ignore[arg-type]
        self._asked = False  # whether the workers of this round were asked to save, for the next one

    def take_part(self) -> None:
        """Run until the run is over, or this host is not wanted or not able any more."""
        try:
            self.run()
        except RunOverError as over:
            self._say(str(over))
            self._conclude(ExitCode(over.exit_code), None)
        except HostsGoneError as gone:
            code = gone.exit_code if self._meeting.read(SAVED) else ExitCode.FAILED
            self._conclude(code, Failure(0, time.time(), "error", int(code), str(gone), brief=True))
        except StoppedBeforeStart as stop:
            self._meeting.finish(int(stop.exit_code))
            if self._meeting.round == 0:
                raise
            self._conclude(stop.exit_code, None)
        finally:
            self._meeting.leave(patience=15.0)

    def _assign_worker_ranks(
        self, store: object, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Number the workers host by host, from what the leader told: nobody waits for anybody."""
        counts = [processes for _, processes in self._meeting.members]
        first, size = sum(counts[:group_rank]), sum(counts)
        ranks = [(local, first + local) for local in range(spec.local_world_size)]
        return [Worker(local, rank, rank, size, size) for local, rank in ranks]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        os.environ[ROUND] = str(self._meeting.round)
        self._asked, self._deadline = False, None
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        call = self._meeting.look()
        codes = self._codes()
        done = all(code == ExitCode.DONE for code in codes.values())
        if call is None or (done and self._meeting.host == 0):
            return super()._monitor_workers(worker_group)
        if not call.gently:
            self._kill()
            return self._regroup(worker_group)
        return self._save_first(worker_group, codes)

    def _save_first(self, worker_group: WorkerGroup, codes: Mapping[int, int | None]) -> RunResult:
        """Have the workers save before they start again; the first time they are told, then they have `grace`."""
        if not self._asked:
            self._asked, self._deadline = True, time.monotonic() + self._grace
            self._signal_workers(SIGTERM, codes)
        left = [code for code in codes.values() if code is not None]
        if any(code not in (ExitCode.DONE, ExitCode.PREEMPTED, -SIGTERM) for code in left):
            return super()._monitor_workers(worker_group)
        late = self._signals.insisted or (self._deadline is not None and time.monotonic() > self._deadline)
        if len(left) == len(codes) or -SIGTERM in left or late:  # some had not begun to listen: nothing is saved
            self._kill()
            return self._regroup(worker_group)
        return RunResult(state=WorkerState.HEALTHY)

    def _regroup(self, worker_group: WorkerGroup) -> RunResult:
        """Have torch's agent start the workers again at no cost, unless this host was told to stop."""
        self._signals.workers_run = False
        if self._signals.first is not None:
            self._meeting.finish(int(ExitCode.PREEMPTED))
            self._conclude(ExitCode.PREEMPTED, None)
            ranks = [worker.global_rank for worker in worker_group.workers]
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
        self._meeting.regroup()
        return RunResult(state=WorkerState.HEALTHY)

    def _forward(self, codes: Mapping[int, int | None]) -> None:
        if self._signals.first is not None and not self._forwarded:
            self._meeting.depart()
        super()._forward(codes)

    def _judge(self, worker_group: WorkerGroup, ranks: Mapping[int, int]) -> RunResult:
        codes = self._settle(ranks)
        failed = [self._failure(local, ranks[local], code) for local, code in codes.items()]
        return self._follow(self._meeting.failed(failures.first_of(failed)), worker_group)

    def _ended(self, codes: Mapping[int, int | None], ranks: Mapping[int, int], early: bool = False) -> RunResult:
        done = all(code == ExitCode.DONE for code in codes.values())
        if not done and self._signals.first is None:
            verdict = self._meeting.stopped()
            if verdict.again:
                return self._regroup(self._worker_group)
        self._meeting.finish(int(ExitCode.DONE if done else ExitCode.PREEMPTED))
        return super()._ended(codes, ranks, early and self._meeting.round == 1)

    def _cut_short(self, worker_group: WorkerGroup, ranks: Mapping[int, int]) -> RunResult:
        result = super()._cut_short(worker_group, ranks)
        self._meeting.finish(self.outcome.exit_code, self.outcome.failure)
        return result

    def _follow(self, verdict: Verdict, worker_group: WorkerGroup) -> RunResult:
        if verdict.again:
            self._kill()
            return self._regroup(worker_group)
        self._conclude(ExitCode(verdict.exit_code), verdict.failure)
        return self._failed(worker_group)

    def _announce(self, ranks: Mapping[int, int]) -> None:
        """In a thread: the link to the store may be cut, and nobody waits for it."""
        threading.Thread(target=super()._announce, args=(ranks,), daemon=True).start()
