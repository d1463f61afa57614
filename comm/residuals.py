"""Error feedback of an attached module: what codecs lost of each bucket, added to the next update's gradient.

Seide et al. 2014 (1-bit SGD); Karimireddy et al. 2019, arXiv 1901.09847.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.buckets import Bucket
from gradwire.comm.errors import CommError
from gradwire.comm.segment import Residual


class Residuals:
    """For every bucket and every axis whose codec wants feedback, what this rank failed to send.

    A residual is in units of the reduced gradient. It counts once the update that it arose in is kept.

    Args:
        all_reduce: Sums the buckets.
        buckets: All of them.
    """

    def __init__(self, all_reduce: AllReduce, buckets: Sequence[Bucket]) -> None:
        self._buckets = tuple(buckets)
        self._ranges = {
            axis: [all_reduce.residual_ranges(axis, bucket.flat) for bucket in buckets]
            for axis, codec in all_reduce.codecs.items()
            if codec.feedback and all_reduce.size > 1
        }
        self._all_reduce = all_reduce
        self._by_bucket = [
            {axis: _zeros(ranges[bucket.index], bucket.flat.device) for axis, ranges in self._ranges.items()}
            for bucket in self._buckets
        ]
        self._unsettled: list[Tensor] | None = None  # of each bucket, whether its reduced gradient is finite

    def of(self, bucket: Bucket) -> Mapping[str, Residual]:
        """By axis."""
        return self._by_bucket[bucket.index]

    def reduced(self) -> None:
        """All buckets were reduced: note whether they are finite, in case nobody says whether the update is kept."""
        if self._ranges:
            self._unsettled = [torch.isfinite(bucket.gradients.sum()) for bucket in self._buckets]

    def settle(self, kept: bool | None = None) -> None:
        """The update was kept, or its gradient thrown away; where None, it is taken to be kept if it was finite."""
        unsettled, self._unsettled = self._unsettled, None
        if unsettled is None or kept is False or (kept is None and not all(map(bool, unsettled))):
            return
        self._by_bucket = [
            {axis: Residual(residual.pending, residual.kept) for axis, residual in by_axis.items()}
            for by_axis in self._by_bucket
        ]

    def discard(self) -> None:
        """Backward failed: what arose in it never counts."""
        self._unsettled = None

    def rescale(self, factor: float) -> None:
        """Gradients come multiplied with `factor` from now on, compared with before: a new loss scale."""
        self.settle()
        for by_axis in self._by_bucket:
            for residual in by_axis.values():
                residual.kept.mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """By axis and parameter name: the spans of its memory that this rank encodes, and their residuals."""
        self.settle()
        return {
            axis: {
                name: {"spans": spans, "values": torch.cat(values)}
                for name, (spans, values) in self._by_name(axis).items()
            }
            for axis in self._ranges
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from this rank's own `state_dict()`.

        Raises:
            CommError: It is of another rank, topology, codec or model.
        """
        self._unsettled = None
        mine = {axis: self._by_name(axis) for axis in self._ranges}
        spans = {axis: {name: found for name, (found, _) in parts.items()} for axis, parts in mine.items()}
        if _spans_of(state) != spans:
            raise CommError(
                f"the saved residuals are of the axes {', '.join(state) or 'none'} on other ranks, or of another "
                f"module; this reducer has feedback on {', '.join(mine) or 'no axis'}. With the states of all ranks, "
                "load_state_dicts() takes them over"
            )
        for axis, parts in mine.items():
            for name, (_, values) in parts.items():
                saved = torch.split(state[axis][name]["values"], [value.numel() for value in values])
                for value, kept in zip(values, saved, strict=True):
                    value.copy_(kept)

    def load_sum(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from all ranks' states of a run on other ranks: the sum of the residuals stays what it was.

        What belongs to an element of the gradient goes to the rank that owns it along the first axis with feedback.

        Raises:
            CommError: The states hold residuals, and no axis has feedback now.
        """
        self._unsettled = None
        if not self._ranges:
            if any(axis for state in states for axis in state):
                raise CommError("the saved residuals have no place: no axis has a codec with error feedback now")
            return
        first = next(iter(self._ranges))
        for axis in self._ranges:
            for name, (spans, values) in self._by_name(axis).items():
                for span, value in zip(spans, values, strict=True):
                    value.copy_(_summed(states, name, span)) if axis == first else value.zero_()
        self._keep_owned(first)

    def _keep_owned(self, axis: str) -> None:
        """Set to zero what another rank owns."""
        for bucket, by_axis in zip(self._buckets, self._by_bucket, strict=True):
            owned = torch.zeros(bucket.flat.numel(), dtype=torch.bool)
            for start, stop in self._all_reduce.owned_ranges(axis, bucket.flat):
                owned[start:stop] = True
            ranges = self._ranges[axis][bucket.index]
            mine = torch.cat([owned[start:stop] for start, stop in ranges]) if ranges else owned[:0]
            by_axis[axis].kept.masked_fill_(~mine.to(bucket.flat.device), 0.0)

    def _by_name(self, axis: str) -> dict[str, tuple[list[list[int]], list[Tensor]]]:
        """By parameter: the spans [start, stop] of its memory that this rank encodes, and the residual of each.

        The padding behind a parameter counts as its own.
        """
        found: dict[str, tuple[list[list[int]], list[Tensor]]] = {}
        for bucket, by_axis in zip(self._buckets, self._by_bucket, strict=True):
            done = 0
            for start, stop in self._ranges[axis][bucket.index]:
                for name, low, high, first in _cut_by_parameter(bucket, start, stop):
                    spans, values = found.setdefault(name, ([], []))
                    spans.append([low - first, high - first])
                    values.append(by_axis[axis].kept[done + low - start : done + high - start])
                done += stop - start
        return found


def _zeros(ranges: Sequence[tuple[int, int]], device: torch.device) -> Residual:
    count = sum(stop - start for start, stop in ranges)
    return Residual(torch.zeros(count, device=device), torch.zeros(count, device=device))


def _cut_by_parameter(bucket: Bucket, start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
    """Cut elements of a bucket at the borders of its parameters: name, elements, where the parameter begins."""
    begins = [int(slot.view.storage_offset()) for slot in bucket.slots]
    for slot, first, end in zip(bucket.slots, begins, [*begins[1:], bucket.flat.numel()], strict=True):
        low, high = max(start, first), min(stop, end)
        if low < high:
            yield slot.name, low, high, first


def _spans_of(state: Mapping[str, Any]) -> dict[str, dict[str, list[list[int]]]]:
    return {axis: {name: saved["spans"] for name, saved in parts.items()} for axis, parts in state.items()}


def _summed(states: Sequence[Mapping[str, Any]], name: str, span: Sequence[int]) -> Tensor:
    """The sum over all ranks and axes of the residuals in a span of a parameter's memory."""
    total = torch.zeros(span[1] - span[0])
    for saved in (parts[name] for state in states for parts in state.values() if name in parts):
        done = 0
        for start, stop in saved["spans"]:
            low, high = max(start, span[0]), min(stop, span[1])
            if low < high:
                total[low - span[0] : high - span[0]] += saved["values"][done + low - start : done + high - start]
            done += stop - start
    return total
