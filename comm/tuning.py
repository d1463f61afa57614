"""Choosing how to reduce: the ways that should be fastest are timed for real, and the fastest is taken."""

import statistics
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.choices import LARGEST, NATIVE, Choice, Way, size_class
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.measure import codec_speed, measure, slowest, slowest_once
from gradwire.comm.prediction import Costs, predict, ways
from gradwire.comm.program import taking_part
from gradwire.comm.topology import Topology

_TIMED = 3  # staged ways that are timed beside the backend's own
_BLOCK = 0.02  # seconds: quicker calls are timed several at once
_MOST_CALLS = 20
_MOST_TURNS = 15
_HOPELESS = (1.0, 3.0, 2.0, *[1.4] * (_MOST_TURNS - 3))  # times the fastest by turn: is not timed again
_WARM_UP = 1 << 20  # bytes, at most, that go through before
_CLOSE = 1.03  # times the fastest: as good as it, so that the plainer one is taken
_PROBE = 4096  # bytes, of which what a stage costs is measured


class Tuner:
    """Measures links and codecs when made, then chooses for any size. Everything here is a collective.

    Every rank sees the times of the slowest, so all choose the same without being told.

    Args:
        topology: The axes.
        codecs: By axis: what may be used.
        group: The ranks.
        device: Of the tensors.
        run: Reduces a tensor in a given way and waits for it.
    """

    def __init__(
        self,
        topology: Topology,
        codecs: Mapping[str, Codec],
        group: dist.ProcessGroup | None,
        device: torch.device,
        run: Callable[[Way, Tensor], None],
    ) -> None:
        self._topology, self._codecs = topology, dict(codecs)
        self._group, self._device, self._run = group, device, run
        for codec in self._codecs.values():
            codec.prepare(device)
        speeds = {axis: codec_speed(codec, device, group) for axis, codec in self._codecs.items()}
        self.costs = Costs(measure(topology, group, device), speeds)
        self.costs = Costs(self.costs.links, speeds, self._handling())

    def choose(self, nbytes: int) -> Choice:
        """The fastest way for tensors of about so many bytes."""
        nbytes = min(nbytes, 2**LARGEST)
        found = self._candidates(nbytes)
        seconds = self._race([NATIVE, *found], nbytes)
        close = [way for way, took in seconds.items() if took <= _CLOSE * min(seconds.values())]
        way = min(close, key=lambda way: (not way.native, way.coded, seconds[way]))
        told = ", ".join(f"{each} {1e3 * seconds[each]:.3g} ms" for each in sorted(seconds, key=seconds.__getitem__))
        return Choice(size_class(nbytes), way, f"measured at {nbytes} bytes: {told}", round(1e3 * seconds[way], 4))

    def _candidates(self, nbytes: int) -> list[Way]:
        """The staged ways that should be fastest, with and without codecs."""
        considered = list(ways(self._topology, self._codecs, nbytes, self._device))
        expected = {way: predict(self._topology, self._codecs, way, nbytes, self.costs) for way in considered}
        order = sorted(considered, key=lambda way: (expected[way], str(way)))
        plain = next(way for way in order if not way.coded)
        first = order[: _TIMED - 1] if plain in order[: _TIMED - 1] else [*order[: _TIMED - 1], plain]
        return first + [way for way in order if way not in first][: _TIMED - len(first)]

    def _race(self, contenders: list[Way], nbytes: int) -> dict[Way, float]:
        """Median seconds of each, by turns; those that fall far behind drop out."""
        source = torch.randn(max(1, nbytes // 4), generator=torch.Generator().manual_seed(0)).to(self._device)
        tensor = torch.empty_like(source)
        few = slice(0, _WARM_UP // 4)
        for way in contenders:  # makes connections and takes memory
            self._time(way, source[few], tensor[few], 1)
        calls = dict.fromkeys(contenders, 1)
        times: dict[Way, list[float]] = {way: [] for way in contenders}
        medians = dict.fromkeys(contenders, 0.0)
        for turn in range(_MOST_TURNS):
            left = [way for way in contenders if medians[way] <= _HOPELESS[turn] * min(medians.values())]
            for way in left if turn % 2 == 0 else reversed(left):
                times[way].append(self._time(way, source, tensor, calls[way]))
                medians[way] = statistics.median(times[way])
                calls[way] = max(1, min(_MOST_CALLS, round(_BLOCK / medians[way])))
            if len(left) == 1 or turn + 1 >= _turns(min(medians.values())):
                break
        return medians

    def _time(self, way: Way, source: Tensor, tensor: Tensor, calls: int) -> float:
        def block() -> None:
            for _ in range(calls):
                self._run(way, tensor)

        tensor.copy_(source)
        return slowest_once(block, self._device, self._group) / calls

    def _handling(self) -> float:
        """What a stage takes beside its message: a small tensor's time, less what its messages take."""
        way = Way("two_shot")
        tensor = torch.zeros(_PROBE // 4, device=self._device)
        took = slowest(lambda: self._run(way, tensor), self._device, self._group, 9)
        expected = predict(self._topology, self._codecs, way, _PROBE, self.costs)
        return max(0.0, took - expected) / (2 * len(taking_part(self._topology)))


def _turns(seconds: float) -> int:
    """How often something of such a length is timed."""
    return _MOST_TURNS if seconds < 0.01 else 7 if seconds < 0.1 else 5 if seconds < 0.5 else 3
