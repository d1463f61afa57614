"""Torch elastic's agent for the workers of one host, with gradwire's rules for signals, failures and restarts."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from gradwire.trainer.launch import failure as failures
from gradwire.trainer.launch.exit_codes import ExitCode
from gradwire.trainer.launch.failure import Failure
from gradwire.trainer.launch.fork_server import Child, ForkServer
from gradwire.trainer.launch.rendezvous import Meeting
from gradwire.trainer.launch.signals import ControllerSignals

_SETTLE = 5.0  # seconds that the other ranks have, after a failure, to notice and to leave by themselves
_IN_ORDER = (ExitCode.DONE, ExitCode.PREEMPTED)


@dataclass(frozen=True)
class Outcome:
    """How a launch ended.

    Attributes:
        exit_code: What the command returns.
        failure: The first failure, or None.
        restarts: How often the workers were restarted.
        early: Whether a signal ended the workers before they had met, so that nothing was done or saved.
    """

    exit_code: int
    failure: Failure | None
    restarts: int
    early: bool = False


class Agent(SimpleElasticAgent):
    """Starts this host's workers, watches them, and says how they ended (`outcome`).

    Args:
        spec: What to start, how often to restart, and where the hosts meet.
        meeting: The same meeting that `spec` holds.
        ranks: Starts the workers.
        error_files: Folder for the workers' error files.
        signals: What this process was told.
        grace: Seconds that the workers have, after a signal, to finish their update and save.
        log_tail: The end of a rank's log, for ranks that died without a word.
        say: Shows a line on the screen.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        meeting: Meeting,
        ranks: ForkServer,
        error_files: str,
        signals: ControllerSignals,
        grace: float,
        log_tail: Callable[[int], str],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(spec)
        self.outcome = Outcome(int(ExitCode.FAILED), None, 0)
        self._meeting, self._signals, self._grace = meeting, signals, grace
        self._ranks, self._error_files = ranks, Path(error_files)
        self._children: dict[int, Child] = {}  # by local rank
        self._log_tail, self._say = log_tail, say
        self._deadline: float | None = None
        self._forwarded = False

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        spec = worker_group.spec
        self._children = {}
        for worker in worker_group.workers:
            self._error_file(worker.local_rank).unlink(missing_ok=True)
            environment = os.environ | self._environment(worker_group, worker)
            self._children[worker.local_rank] = self._ranks.start((str(spec.entrypoint), *spec.args), environment)
        self._signals.workers_run = True
        return {local: child.pid for local, child in self._children.items()}

    def _environment(self, group: WorkerGroup, worker: Worker) -> dict[str, str]:
        """A worker's place, as torchrun tells it."""
        told = {
            "RANK": worker.global_rank,
            "LOCAL_RANK": worker.local_rank,
            "GROUP_RANK": group.group_rank,
            "WORLD_SIZE": worker.world_size,
            "LOCAL_WORLD_SIZE": group.spec.local_world_size,
            "GROUP_WORLD_SIZE": group.group_world_size,
            "MASTER_ADDR": group.master_addr,
            "MASTER_PORT": group.master_port,
            "TORCHELASTIC_RESTART_COUNT": group.spec.max_restarts - self._remaining_restarts,
            "TORCHELASTIC_MAX_RESTARTS": group.spec.max_restarts,
            "TORCHELASTIC_RUN_ID": group.spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": group.spec.rdzv_handler.use_agent_store,
            failures.ERROR_FILE: self._error_file(worker.local_rank),
        }
        return {name: str(value) for name, value in told.items()}

    def _error_file(self, local_rank: int) -> Path:
        return self._error_files / f"error-{local_rank}.json"

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers once: the agent calls this in its loop."""
        codes = self._codes()
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        failed = [local for local, code in codes.items() if code is not None and code not in _IN_ORDER]
        if failed and not self._stopped_early(codes):
            return self._judge(worker_group, ranks)
        if failed:
            self._kill()  # the ranks never met: there is nothing to save
            return self._ended(codes, ranks, early=True)
        if all(code is not None for code in codes.values()):
            return self._ended(codes, ranks)
        self._forward(codes)
        if self._signals.insisted or (self._deadline is not None and time.monotonic() > self._deadline):
            return self._cut_short(worker_group, ranks)
        return RunResult(state=WorkerState.HEALTHY)

    def _codes(self) -> dict[int, int | None]:
        return {local: child.poll() for local, child in self._children.items()}

    def _forward(self, codes: Mapping[int, int | None]) -> None:
        """Pass the first signal on; from then on, or once a rank has left, the others have `grace` seconds."""
        if self._signals.first is not None and not self._forwarded:
            self._forwarded = True
            self._signal_workers(self._signals.first, codes)
        leaving = self._forwarded or any(code is not None for code in codes.values())
        if leaving and self._deadline is None:
            self._deadline = time.monotonic() + self._grace

    def _signal_workers(self, number: signal.Signals, codes: Mapping[int, int | None]) -> None:
        for local, child in self._children.items():
            if codes[local] is None:
                os.kill(child.pid, number)

    def _stopped_early(self, codes: Mapping[int, int | None]) -> bool:
        """Whether all that happened is that the signal ended workers without a handler: ours, or one sent to all."""
        first = self._signals.first
        return first is not None and all(code is None or code in _IN_ORDER or code == -first for code in codes.values())

    def _ended(self, codes: Mapping[int, int | None], ranks: Mapping[int, int], early: bool = False) -> RunResult:
        """Every worker left in good order."""
        done = all(code == ExitCode.DONE for code in codes.values())
        self._conclude(ExitCode.DONE if done else ExitCode.PREEMPTED, None, early)
        return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks.values()))

    def _cut_short(self, worker_group: WorkerGroup, ranks: Mapping[int, int]) -> RunResult:
        """Kill what still runs: the user insisted, or the grace period is over."""
        reason = "SIGINT came twice" if self._signals.insisted else f"launch.grace ({self._grace:g} s) is over"
        message = f"Stopped before all ranks could save: {reason}. The newest checkpoint is whole."
        self._kill()
        self._remaining_restarts = 0
        self._conclude(ExitCode.FAILED, Failure(min(ranks.values()), time.time(), "stalled", 1, message))
        return self._failed(worker_group)

    def _judge(self, worker_group: WorkerGroup, ranks: Mapping[int, int]) -> RunResult:
        """A rank failed: let the others leave, find the first failure of all hosts, and decide about a restart."""
        codes = self._settle(ranks)
        first = failures.first_of(self._failure(local, ranks[local], code) for local, code in codes.items())
        verdicts = self._meeting.agree(asdict(first))
        for host in (host for host, verdict in enumerate(verdicts) if verdict is None):
            self._say(f"Host {host} no longer answers.")
        first = failures.first_of(Failure(**verdict) for verdict in verdicts if verdict is not None)
        lost = first.kind in ("killed", "peer")
        if not lost or self._signals.first is not None:
            self._remaining_restarts = 0
        if self._remaining_restarts > 0:
            self._say(f"{first.message} Restarting from the newest checkpoint ({self._remaining_restarts} left).")
        code = ExitCode.FAILED if first.exit_code == ExitCode.PEER_LOST else first.exit_code
        self._conclude(code, first)
        return self._failed(worker_group)

    def _settle(self, ranks: Mapping[int, int]) -> dict[int, int]:
        """Wait for the others to notice, then kill them.

        Returns:
            The exit codes, by local rank, of the ranks that failed by themselves.
        """
        self._announce(ranks)
        deadline = time.monotonic() + _SETTLE
        while any(code is None for code in self._codes().values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        codes = {local: code for local, code in self._codes().items() if code is not None and code not in _IN_ORDER}
        self._kill()
        return codes

    def _announce(self, ranks: Mapping[int, int]) -> None:
        """A rank that was killed could not tell the others: do it in its place, so that they need not time out."""
        store = PrefixStore(f"gradwire/attempt-{self._meeting.round - 1}", self._meeting.store)
        for local, code in self._codes().items():
            if code is not None and code < 0:
                failures.publish(store, failures.killed(ranks[local], code, self._log_tail(ranks[local])))

    def _failure(self, local: int, rank: int, code: int) -> Failure:
        written = failures.read_error_file(str(self._error_file(local)))
        if written is not None:
            return written
        make = failures.killed if code < 0 else failures.silent
        return make(rank, code, self._log_tail(rank))

    def _failed(self, worker_group: WorkerGroup) -> RunResult:
        """A result that torch's agent takes for a failure; what really happened stands in `outcome`."""
        worker = worker_group.workers[0]
        return RunResult(
            state=WorkerState.FAILED,
            failures={worker.global_rank: ProcessFailure(worker.local_rank, worker.id, 1, "")},
        )

    def _conclude(self, code: int, failure: Failure | None, early: bool = False) -> None:
        used = self._worker_group.spec.max_restarts - self._remaining_restarts
        self.outcome = Outcome(int(code), failure, used, early)

    def _kill(self) -> None:
        """End every worker with all processes it started."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, *arguments: object, **options: object) -> None:
        """End what still runs. Whoever may save has had its grace period by now."""
        if None in self._codes().values():
            self._kill()
        deadline = time.monotonic() + _SETTLE
        while None in self._codes().values() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _exit_barrier(self) -> None:
        self._meeting.leave(patience=60.0)
