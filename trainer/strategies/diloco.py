"""DiLoCo: hosts train by themselves, and every so many updates average what they have learned (arXiv 2311.08105)."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.comm import AllReduce, Choice, CommError, attach, broadcast_parameters
from gradwire.comm.codecs import Bf16
from gradwire.comm.replicas import check_replicas, check_tensors
from gradwire.comm.telemetry import NOTHING, by_axis
from gradwire.trainer.config.range import Range
from gradwire.trainer.errors import StrategyError
from gradwire.trainer.strategies.collective import Collective
from gradwire.trainer.strategies.exchanges import Cost, Pending
from gradwire.trainer.strategies.host import Host, between_hosts, within_host
from gradwire.trainer.strategies.outer import Calendar, OuterSGD
from gradwire.trainer.strategies.outer_loop import OuterLoop

log = logging.getLogger("gradwire")


class DiLoCo(Collective):
    """Hosts train by themselves and are synchronized every so many updates; far less travels between them.

    The ranks of a host (all axes of the topology but the last) sum gradients at every update, as `DataParallel` does
    over all ranks. After every `every` updates the outer gradient, outer parameters minus the host's, is averaged over
    the hosts, with the codec of the last axis, and SGD with Nesterov's momentum moves the outer parameters, from which
    all hosts go on. Each host takes its share of the global batch, and its gradient is the mean over that.

    What is evaluated, and saved as the model, are the outer parameters. They are the same everywhere at any time, cost
    no traffic, and are what all hosts go on from; the mean of the hosts' own would have to be sent each time, and no
    host ever trains from it. Between synchronizations they stand where the last ones left them: let evaluations and
    snapshots fall on multiples of `every`. After the last update of the plan everything is synchronized once more.
    A snapshot also holds every host's own parameters, buffers and optimizer, so that the run goes on in the same bits;
    another strategy, or another number of hosts, goes on from the outer parameters with the first host's optimizer.

    Args:
        all_reduce: The axes of all ranks, fastest first, with algorithm and codecs.
        device: This rank's device.
        bucket_mb: Size of the flat buckets that gradients travel in within a host, MiB.
        control: Group for small exchanges (a CPU backend); the default group where None.
        every: Updates from one synchronization of a parameter to its next.
        fragments: The model's blocks are dealt into so many fragments, synchronized in turns; they divide `every`.
        overlap: Updates that a fragment's outer gradient may travel before it is applied, while training goes on; less
            than every / fragments.
        mix: With overlap, share of the host's own parameters that stays when the outer ones arrive.
        outer_lr: Learning rate of the outer SGD; 1 with outer_momentum=0 averages the parameters, as local SGD does.
        outer_momentum: Its Nesterov momentum.

    Raises:
        StrategyError: The numbers do not go together, or there are fewer parts of the model than fragments.
    """

    apart = True

    def __init__(
        self,
        all_reduce: AllReduce,
        device: torch.device,
        bucket_mb: float = 25.0,
        control: dist.ProcessGroup | None = None,
        every: Annotated[int, Range(ge=1)] = 100,
        fragments: Annotated[int, Range(ge=1)] = 1,
        overlap: Annotated[int, Range(ge=0)] = 0,
        mix: Annotated[float, Range(ge=0, lt=1)] = 0.5,
        outer_lr: Annotated[float, Range(gt=0)] = 0.7,
        outer_momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9,
    ) -> None:
        super().__init__(device, control)
        self._all_reduce = all_reduce
        self._bucket_mb = bucket_mb
        self._calendar = Calendar(every, fragments, overlap)
        self._outer_sgd = OuterSGD(outer_lr, outer_momentum)
        self._mix = mix
        self._last, self._hosts = list(all_reduce.topology.axes.items())[-1]
        self._asked: deque[Pending] = deque()
        self._begun = False  # whether the model's parameters may be other than the outer ones
        self._evaluates = False

    def prepare(self, model: nn.Module) -> nn.Module:
        model.to(self.device)
        broadcast_parameters(model)
        self._host = Host(self.world_size // self._hosts)
        self._reducer = attach(
            model, within_host(self._all_reduce, self._host.group), op="sum", bucket_mb=self._bucket_mb
        )
        self._between = between_hosts(self._all_reduce).private(self.device)
        self._loop = OuterLoop(model, self._between, self.world_size, self._calendar, self._outer_sgd, self._mix)
        self._model = model
        return model

    def bind(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    @property
    def leads(self) -> bool:
        return self.rank == self._host.first

    def peers(self, values: Tensor) -> Mapping[int, Tensor]:
        return self._host.gather(values)

    def accumulate(self) -> AbstractContextManager[None]:
        return self._reducer.no_sync()

    def carry(self, counts: Sequence[int]) -> None:
        """What the first and the last number count is the host's; those between are requests, which all ranks hear."""
        targets, *requests, divisor = counts
        self._asked.append(self.start_sum(torch.tensor(requests)))
        self._reducer.carry([targets, divisor])

    def carried(self) -> list[int]:
        """The requests are those of the update before: no host waits for another's message of the same update."""
        targets, divisor = self._reducer.carried
        if len(self._asked) == 1:
            return [targets, 0, 0, divisor]
        return [targets, *self._asked.popleft().wait().tolist(), divisor]

    def settle(self, kept: bool) -> None:
        self._reducer.settle(kept)
        self._begun = True
        self._loop.advance()

    def conclude(self) -> None:
        self._loop.conclude()

    def rescale(self, factor: float) -> None:
        if factor != 1.0:
            raise StrategyError("each host would have a loss scale of its own: use bf16 or fp32")

    def drain(self) -> None:
        while self._asked:
            self._asked.popleft().wait()
        self._loop.receive()

    def carries(self) -> bool:
        return True

    def record(self) -> str | None:
        return "hosts apply gradients of their own (strategy=diloco), so that no reduced one tells what an update did"

    def cost(self) -> Cost:
        reductions = [self._reducer.take_traffic(), *self._loop.take_traffic()]
        axes = by_axis(reductions)
        for axis, error in self._loop.errors.items():  # counts until the next reduction
            axes[axis] = replace(axes.get(axis, NOTHING), error=error)
        return Cost(self._reducer.take_exposed() + self._loop.take_exposed(), axes)

    def tolerances(self) -> Mapping[str, float]:
        between = {axis: codec.tolerance for axis, codec in self._between.codecs.items()}
        return {**self._reducer.tolerances, **{axis: most for axis, most in between.items() if most is not None}}

    def fall_back(self, axis: str) -> None:
        if axis == self._last:
            self._loop.receive()
            self._between.recode(axis, Bf16())
        else:
            self._reducer.fall_back(axis)

    def choices(self) -> Sequence[Choice]:
        return self._reducer.choices()

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's state with the outer parameters in it."""
        return self._loop.in_state_of(model)

    def state_dict(self) -> dict[str, Any]:
        """What a snapshot holds beside the model; `outer` is the same on every rank, `host` stands with a host's first.

        What is under way is waited for.
        """
        own = {
            "outer": self._loop.state_dict(),
            "place": self._place(),
            "fragments": [fragment.state_dict() for fragment in self._loop.fragments],
            "errors": dict(self._loop.errors),
            "within": self._reducer.state_dict(),
        }
        return {**own, "host": self._host.state_dict(self._model, self._optimizer)} if self.leads else own

    def _place(self) -> list[int]:
        return [self._hosts, self._host.size, self.rank]

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """The model holds the outer parameters, as they were saved. A collective over all ranks."""
        fits = self.gather(torch.tensor([int(self._takes(state))]))
        if not all(map(int, fits)):
            return False
        self._loop.begin(state["outer"])
        self._loop.errors = dict(state["errors"])
        self._host.load_state_dict(state.get("host"), self._model, self._optimizer)
        self._begun = True
        return True

    def _takes(self, state: Mapping[str, Any]) -> bool:
        """Whether a saved state is of this rank as it is now; what codecs lost is taken over then."""
        if "outer" not in state or state["place"] != self._place() or not self._loop.fits(state["outer"]):
            return False
        try:
            self._reducer.load_state_dict(state["within"])
        except CommError:
            return False
        saved = zip(self._loop.fragments, state["fragments"], strict=True)
        return all(fragment.load_state_dict(each) for fragment, each in saved)

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> str | None:
        """All hosts go on from the outer parameters, which the model holds, and the first host's optimizer."""
        outer = next((state["outer"] for state in states if "outer" in state), None)
        self._loop.begin(outer)
        self._loop.give_out()
        self._begun = True
        if outer is None:
            log.info("%d hosts train by themselves from here on", self._hosts)
        else:
            log.warning(_ELSEWHERE, *next(state["place"][:2] for state in states), *self._place()[:2])
        for fragment in self._loop.fragments:
            fragment.load_sum([each for state in states for each in state.get("fragments", ())])
        self._reducer.load_state_dicts([state.get("within", {}) for state in states])
        return _BEFORE if any(state.get("residuals") for state in states) else None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within the block every rank's model holds the outer parameters, and the first host's buffers."""
        if not self._begun:
            yield
            return
        self._evaluates = True
        try:
            with self._loop.given_out(self._model.buffers()):
                yield
        finally:
            self._evaluates = False

    def synchronize_buffers(self, model: nn.Module) -> None:
        """Give the ranks of a host its first one's buffers; while evaluating, all ranks those of the first."""
        group = None if self._evaluates else self._host.group
        for buffer in model.buffers():
            dist.broadcast(buffer, group=group, group_src=0)

    def check_replicas(self, model: nn.Module) -> None:
        """All ranks hold the same outer parameters, and the ranks of a host the same model."""
        check_tensors([(f"the outer {name}", outer) for name, outer in self._loop.parameters.items()])
        check_replicas(model, self._host.group)

    def close(self) -> None:
        """End the threads and process groups that `prepare` began, for good. A collective."""
        self.drain()
        self._reducer.detach()
        self._between.close()
        self._host.leave()


_BEFORE = "what codecs lost of gradients that all ranks reduced, which strategy=diloco does not send"
_ELSEWHERE = (
    "the snapshot is of %d hosts with %d ranks each, and now there are %d with %d, or other fragments or codecs: all "
    "go on from the outer parameters, with the first host's optimizer. What hosts had learned since their last "
    "synchronization is dropped"
)
