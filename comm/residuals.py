"""What compression carries over to the next update: what was lost of each bucket, momenta, and factors.

Error feedback: Seide et al. 2014 (1-bit SGD); Karimireddy et al. 2019, arXiv 1901.09847.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.buckets import Bucket
from gradwire.comm.errors import CommError
from gradwire.comm.group import rank_of
from gradwire.comm.momentum import DeepGradientCompression
from gradwire.comm.power_sgd import LowRank, PowerSGD
from gradwire.comm.recording import Record
from gradwire.comm.segment import Residual
from gradwire.comm.works import Work


class Residuals:
    """For every bucket and every axis whose codec wants feedback, what this rank failed to send.

    A residual is in units of the reduced gradient. It counts once the update that it arose in is kept. So do the
    momenta of deep gradient compression, which are in the same units, and PowerSGD's factors, which are in none: a step
    begins with their directions.

    Args:
        all_reduce: Sums the buckets.
        buckets: Numbered from 0 on.
    """

    def __init__(self, all_reduce: AllReduce, buckets: Sequence[Bucket]) -> None:
        self.buckets = tuple(buckets)
        self._ranges = {
            axis: [all_reduce.residual_ranges(axis, bucket.flat) for bucket in buckets]
            for axis, codec in all_reduce.codecs.items()
            if codec.feedback and all_reduce.size > 1
        }
        self._all_reduce = all_reduce
        codecs = {axis: all_reduce.codecs[axis] for axis in self._ranges}
        self._low_rank = {axis: LowRank(codec) for axis, codec in codecs.items() if isinstance(codec, PowerSGD)}
        self._corrected = {axis for axis, codec in codecs.items() if isinstance(codec, DeepGradientCompression)}
        self._by_bucket = [{axis: self._zeros(axis, bucket) for axis in self._ranges} for bucket in self.buckets]
        self._arrears: dict[int, Tensor] = {}  # by bucket, what the next gradient gets once and no axis can carry
        self._unsettled: list[Tensor] | None = None  # of each bucket, whether its reduced gradient is finite

    def of(self, bucket: Bucket) -> Mapping[str, Residual]:
        """By axis."""
        return self._by_bucket[bucket.index]

    def start(self, bucket: Bucket, seed: int, update: int, record: Record | None = None) -> Work | None:
        """Begin to sum a bucket over the ranks, with what was carried over; see `AllReduce.__call__`."""
        if self._all_reduce.codecs and bucket.gaps:
            torch._foreach_zero_(bucket.gaps)
        arrears = self._arrears.get(bucket.index)
        if arrears is not None:
            bucket.flat.add_(arrears)
        return self._all_reduce(
            bucket.flat,
            op="sum",
            async_op=True,
            seed=seed,
            residuals=self.of(bucket),
            update=update,
            matrices=bucket.matrices,
            record=record,
        )

    @property
    def finite(self) -> bool | None:
        """Whether what was reduced is finite; None where nothing is to be settled."""
        return None if self._unsettled is None else all(map(bool, self._unsettled))

    @property
    def settled(self) -> bool:
        """Whether there is nothing that `settle` would decide."""
        return self._unsettled is None

    def reduced(self, buckets: Sequence[Bucket] | None = None) -> None:
        """All were reduced: note whether they are finite, in case nobody says whether the update is kept.

        Args:
            buckets: Where the gradients lie, if in other memory than that of the buckets given at first.
        """
        if self._ranges or self._arrears:
            self._unsettled = [torch.isfinite(bucket.gradients.sum()) for bucket in buckets or self.buckets]

    def settle(self, kept: bool | None = None) -> None:
        """The update was kept, or its gradient thrown away; where None, it is taken to be kept if it was finite."""
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is None:
            return
        kept = all(map(bool, unsettled)) if kept is None else kept
        for low_rank in self._low_rank.values():
            low_rank.settle(kept)
        if kept:
            self._arrears = {}
            self._by_bucket = [
                {axis: residual.kept_now() for axis, residual in by_axis.items()} for by_axis in self._by_bucket
            ]

    def discard(self) -> None:
        """Backward failed: what arose in it never counts."""
        self._unsettled = None

    def rescale(self, factor: float) -> None:
        """Gradients come multiplied with `factor` from now on, compared with before: a new loss scale."""
        self.settle()
        for by_axis in self._by_bucket:
            for kept in itertools.chain(*(_kept(residual).values() for residual in by_axis.values())):
                kept.mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """Residuals by axis and parameter name, with the spans of its memory that this rank encodes; factors by axis.

        A residual is a list of flat tensors: what was lost, and with momentum correction the velocity.
        """
        self.settle()
        residuals = {
            axis: {
                name: {"spans": spans, **{kind: torch.cat(values) for kind, values in kinds.items()}}
                for name, (spans, kinds) in self._by_name(axis).items()
            }
            for axis in self._ranges
        }
        state = {
            "residuals": residuals,
            "factors": {axis: low_rank.state_dict() for axis, low_rank in self._low_rank.items()},
            "arrears": {
                name: {"spans": [[low - first, high - first]], "values": self._arrears[bucket.index][low:high]}
                for bucket in self.buckets
                if bucket.index in self._arrears
                for name, low, high, first in _cut_by_parameter(bucket, 0, bucket.flat.numel())
            },
        }
        return {key: value for key, value in state.items() if value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this rank's own `state_dict()`.

        Raises:
            CommError: It is of another rank, topology, codec or model.
        """
        self._unsettled = None
        residuals, factors = state.get("residuals", {}), state.get("factors", {})
        mine = {axis: self._by_name(axis) for axis in self._ranges}
        outline = {
            axis: {name: (spans, set(kinds)) for name, (spans, kinds) in parts.items()} for axis, parts in mine.items()
        }
        if _outline_of(residuals) != outline or set(factors) != set(self._low_rank):
            raise CommError(
                f"the saved residuals are of the axes {', '.join(residuals) or 'none'} on other ranks, or of another "
                f"codec or module; this reducer has feedback on {', '.join(mine) or 'no axis'}. With the states of all "
                "ranks, load_state_dicts() takes them over"
            )
        for axis, parts in mine.items():
            for name, (_, kinds) in parts.items():
                for kind, values in kinds.items():
                    saved = torch.split(residuals[axis][name][kind], [value.numel() for value in values])
                    for value, kept in zip(values, saved, strict=True):
                        value.copy_(kept)
        for axis, low_rank in self._low_rank.items():
            low_rank.load_state_dict(factors[axis])
        self._arrears = self._gathered([{_ARREARS: state.get("arrears", {})}], self.buckets)

    def load_sum(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from all ranks' states of a run on other ranks: the sum of the residuals stays what it was.

        What belongs to an element of the gradient goes to the rank that owns it along the first axis with feedback.
        Buckets without such an axis get it with their next gradient, from the first rank. Velocities go likewise, or
        are lost where nothing has momentum correction now. Factors of the same rows stay.

        Raises:
            CommError: The states hold residuals, and a single rank that reduces nothing is to take them.
        """
        self._unsettled = None
        residuals = [{**state.get("residuals", {}), _ARREARS: state.get("arrears", {})} for state in states]
        if not self.buckets and any(parts for by_axis in residuals for parts in by_axis.values()):
            raise CommError("a single rank reduces no gradients that the saved residuals could be added to")
        uncarried = [bucket for bucket in self.buckets if not any(each[bucket.index] for each in self._ranges.values())]
        first_rank = rank_of(self._all_reduce.group) == 0
        self._arrears = self._gathered(residuals, uncarried) if first_rank else {}
        first = next(iter(self._ranges), None)
        for axis in self._ranges:
            for name, (spans, kinds) in self._by_name(axis).items():
                for kind, values in kinds.items():
                    for span, value in zip(spans, values, strict=True):
                        value.copy_(summed(residuals, name, kind, span)) if axis == first else value.zero_()
        if first is not None:
            self._keep_owned(first)
        for axis, low_rank in self._low_rank.items():
            low_rank.load_state_dict(
                _united([state["factors"][axis] for state in states if axis in state.get("factors", {})])
            )

    def _gathered(self, residuals: Sequence[Mapping[str, Any]], buckets: Sequence[Bucket]) -> dict[int, Tensor]:
        """By bucket, the sum of all residuals, where there are any."""
        found: dict[int, Tensor] = {}
        for bucket in buckets:
            flat = torch.zeros(bucket.flat.numel(), device=bucket.flat.device)
            for name, low, high, first in _cut_by_parameter(bucket, 0, bucket.flat.numel()):
                flat[low:high] = summed(residuals, name, "values", (low - first, high - first)).to(flat.device)
            if flat.any():
                found[bucket.index] = flat
        return found

    def _keep_owned(self, axis: str) -> None:
        """Set to zero what another rank owns."""
        for bucket, by_axis in zip(self.buckets, self._by_bucket, strict=True):
            owned = torch.zeros(bucket.flat.numel(), dtype=torch.bool)
            for start, stop in self._all_reduce.owned_ranges(axis, bucket.flat):
                owned[start:stop] = True
            ranges = self._ranges[axis][bucket.index]
            mine = torch.cat([owned[start:stop] for start, stop in ranges]) if ranges else owned[:0]
            for kept in _kept(by_axis[axis]).values():
                kept.masked_fill_(~mine.to(bucket.flat.device), 0.0)

    def _zeros(self, axis: str, bucket: Bucket) -> Residual:
        count = sum(stop - start for start, stop in self._ranges[axis][bucket.index])
        zeros = [torch.zeros(count, device=bucket.flat.device) for _ in range(4 if axis in self._corrected else 2)]
        velocity = Residual(zeros[2], zeros[3]) if axis in self._corrected else None
        return Residual(zeros[0], zeros[1], velocity, self._low_rank.get(axis))

    def _by_name(self, axis: str) -> dict[str, tuple[list[list[int]], dict[str, list[Tensor]]]]:
        """By parameter: the spans [start, stop] of its memory that this rank encodes, and what is kept of each.

        The padding behind a parameter counts as its own.
        """
        found: dict[str, tuple[list[list[int]], dict[str, list[Tensor]]]] = {}
        for bucket, by_axis in zip(self.buckets, self._by_bucket, strict=True):
            done = 0
            for start, stop in self._ranges[axis][bucket.index]:
                for name, low, high, first in _cut_by_parameter(bucket, start, stop):
                    spans, kinds = found.setdefault(name, ([], {}))
                    spans.append([low - first, high - first])
                    for kind, kept in _kept(by_axis[axis]).items():
                        kinds.setdefault(kind, []).append(kept[done + low - start : done + high - start])
                done += stop - start
        return found


_ARREARS = ""  # stands for an axis among those of saved residuals


def _kept(residual: Residual) -> dict[str, Tensor]:
    """What counts now, by the name under which it is saved."""
    return {"values": residual.kept, **({"velocity": residual.velocity.kept} if residual.velocity else {})}


def _cut_by_parameter(bucket: Bucket, start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
    """Cut elements of a bucket at the borders of its parameters: name, elements, where the parameter begins."""
    begins = [int(slot.view.storage_offset()) for slot in bucket.slots]
    for slot, first, end in zip(bucket.slots, begins, [*begins[1:], bucket.flat.numel()], strict=True):
        low, high = max(start, first), min(stop, end)
        if low < high:
            yield slot.name, low, high, first


def _outline_of(residuals: Mapping[str, Any]) -> dict[str, dict[str, tuple[list[list[int]], set[str]]]]:
    return {
        axis: {name: (saved["spans"], set(saved) - {"spans"}) for name, saved in parts.items()}
        for axis, parts in residuals.items()
    }


def _united(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The factors of all ranks; those of the same rows are the same on all of them."""
    factors = {key: factor for state in states for key, factor in state["factors"].items()}
    return {"steps": max((state["steps"] for state in states), default=0), "factors": factors}


def summed(residuals: Sequence[Mapping[str, Any]], name: str, kind: str, span: Sequence[int]) -> Tensor:
    """The sum over all ranks and axes of what was kept of a span of a parameter's memory."""
    total = torch.zeros(span[1] - span[0])
    for saved in (parts[name] for by_axis in residuals for parts in by_axis.values() if kind in parts.get(name, {})):
        done = 0
        for start, stop in saved["spans"]:
            low, high = max(start, span[0]), min(stop, span[1])
            if low < high:
                total[low - span[0] : high - span[0]] += saved[kind][done + low - start : done + high - start].cpu()
            done += stop - start
    return total
