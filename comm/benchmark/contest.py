"""Contenders take turns on the same tensors; every result is checked as it comes."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from gradwire.comm import codecs
from gradwire.comm.benchmark.contenders import Contender, Ours, Run, Shape, contender
from gradwire.comm.errors import CommError
from gradwire.comm.group import gather_rows

_COPIES = 256 * 2**20  # bytes of inputs that one block may hold
_MOST_CALLS = 200
_LEAST_ROUNDS = 3
_PERIOD = 1_048_583  # elements after which inputs repeat: a prime, so that no chunk looks like another
_DEVIATION = 16.0  # of the inputs
_MOST_BITS = (
    14  # of a deviation: inputs are multiples of a power of two, so that sums of all ranks are exact in float32
)


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Turns that each contender gets, at most.
        block_s: Seconds of calls in a turn, about.
        patience: Seconds for one size, after which no further round begins once there are three.
    """

    rounds: int
    block_s: float
    patience: float = math.inf


@dataclass
class Measured:
    """What one contender did at one size, over all ranks.

    Attributes:
        calls: In a block.
        seconds: Of a call, by round; the slowest rank's.
        sent: Bytes of a call that a host's network interface counted, by round, the most of any host; NaN where it
            could not be read.
        counted: Bytes of a call that our own meters counted, by round, the most of any rank; NaN for others.
        errors: Relative error of the worst rank, by round.
        same_bits: Whether after each round all ranks held the same.
    """

    calls: int
    seconds: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    counted: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    same_bits: bool = True


class Contest:
    """Contenders over the ranks of the default group, made once. All its calls are collectives.

    Args:
        shape: How the ranks are arranged.
        names: Of the contenders, see `contenders`.
        device: Of the tensors; the CPU where None.

    Attributes:
        unavailable: Why a contender cannot take part, by its name.
    """

    def __init__(self, shape: Shape, names: Sequence[str], device: torch.device | None = None) -> None:
        self._shape = shape
        self._device = device or torch.device("cpu")
        self._runs: dict[str, Run] = {}
        self.unavailable: dict[str, str] = {}
        for name in names:
            try:
                self._runs[name] = contender(name).make(shape)
            except CommError as error:
                self.unavailable[name] = str(error)

    def measure(
        self, elements: int, effort: Effort, pulse: Callable[[str], None] = lambda name: None
    ) -> dict[str, Measured]:
        """Let the contenders take turns on float32 tensors; the same on every rank.

        In each round every contender runs a block of calls, in an order that is reversed from round to round; `pulse`
        is called with its name before.
        """
        trial = _Trial(self._shape, elements, self._device)
        begun = time.monotonic()
        found: dict[str, Measured] = {}
        for name in self._runs:
            pulse(name)
            found[name] = Measured(self._calls(trial, name, effort))
        for turn in range(effort.rounds):
            for name in found if turn % 2 == 0 else reversed(found):
                pulse(name)
                _add(found[name], self._block(trial, name, found[name].calls), contender(name))
            if turn + 1 >= _LEAST_ROUNDS and _slowest(time.monotonic() - begun) > effort.patience:
                break
        return found

    def _calls(self, trial: "_Trial", name: str, effort: Effort) -> int:
        """As many as fill a block. The first call, which sets things up, does not count."""
        run = self._runs[name]
        seconds = [_slowest(self._time(run, [trial.source.clone()])) for _ in range(2)][-1]
        most = min(_MOST_CALLS, _COPIES // trial.source.nbytes)
        return max(1, min(most, round(effort.block_s / max(seconds, 1e-6))))

    def _block(self, trial: "_Trial", name: str, calls: int) -> Tensor:
        """Of every rank a row: seconds, bytes by the interface and by our meters, error, digest in two parts."""
        run = self._runs[name]
        tensors = [trial.source.clone() for _ in range(calls)]
        if run.traffic is not None:
            run.traffic()
        dist.barrier()
        before = _sent_bytes(self._device)
        seconds = self._time(run, tensors) / calls
        dist.barrier()
        sent = (_sent_bytes(self._device) - before) / calls
        counted = math.nan if run.traffic is None else sum(each.sent for each in run.traffic().values()) / calls
        result = tensors[-1].cpu()
        error = trial.error(result) if contender(name).reduces else 0.0
        digest = xxhash.xxh3_64_intdigest(result.numpy().data) if contender(name).reduces else 0
        row = [seconds, sent, counted, error, float(digest >> 32), float(digest & 0xFFFFFFFF)]
        return gather_rows(torch.tensor(row, dtype=torch.float64), None)

    def _time(self, run: Run, tensors: Sequence[Tensor]) -> float:
        dist.barrier()
        self._synchronize()
        start = time.perf_counter()
        for tensor in tensors:
            run.reduce(tensor)
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class _Trial:
    """This rank's input and the exact mean."""

    def __init__(self, shape: Shape, elements: int, device: torch.device) -> None:
        period = min(elements, _PERIOD)
        inputs = (_pattern(rank, shape.ranks, period) for rank in range(shape.ranks))
        total, squares = torch.zeros(period), torch.zeros(period)
        for rank, values in enumerate(inputs):
            total += values
            squares += values.square()
            if rank == dist.get_rank():
                self.source = _repeated(values, elements).to(device)
        self._exact = total / shape.ranks  # sums are exact, the division rounds once: what a mean is to give
        self._scale = math.sqrt(float(_repeated(squares, elements).sum(dtype=torch.float64))) / shape.ranks

    def error(self, result: Tensor) -> float:
        """Norm of what is wrong over the expected norm of a mean of independent inputs; 0.0 where it is exact."""
        wrong = 0.0
        for part in torch.split(result, len(self._exact)):
            wrong += float((part - self._exact[: len(part)]).square().sum(dtype=torch.float64))
        return math.sqrt(wrong) / self._scale if wrong else 0.0


def limit(each: Contender, elements: int) -> float:
    """The relative error past which a result is wrong: none where nothing is compressed; looser for a few numbers."""
    if not isinstance(each, Ours) or each.codec in (None, "none"):
        return 0.0
    codec = codecs.named(each.codec)
    most = codec.tolerance if codec.tolerance is not None else 1.0 if codec.feedback else 0.01
    return most * (1 + 4 / math.sqrt(elements))


@lru_cache(maxsize=1)
def _interface() -> Path | None:
    path = Path(f"/sys/class/net/{os.environ.get('GLOO_SOCKET_IFNAME', '')}/statistics/tx_bytes")
    return path if path.is_file() else None


def _sent_bytes(device: torch.device) -> float:
    """What this host's network interface has sent; NaN where that says nothing about the tensors."""
    path = _interface() if device.type == "cpu" else None
    return math.nan if path is None else float(path.read_text())


def _pattern(rank: int, ranks: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    steps = 2.0 ** min(_MOST_BITS, 21 - (ranks - 1).bit_length())
    return (torch.randn(count, generator=generator) * steps).round_() * (_DEVIATION / steps)


def _repeated(values: Tensor, elements: int) -> Tensor:
    return values.repeat(-(-elements // len(values)))[:elements]


def _slowest(seconds: float) -> float:
    return float(gather_rows(torch.tensor([seconds], dtype=torch.float64), None).max())


def _add(found: Measured, block: Tensor, each: Contender) -> None:
    seconds, sent, counted, error = (float(value) for value in block[:, :4].max(0).values)
    found.seconds.append(seconds)
    found.sent.append(sent)
    found.counted.append(counted)
    found.errors.append(error)
    if each.reduces:
        found.same_bits = found.same_bits and bool((block[:, 4:] == block[:1, 4:]).all())
