"""Where the bytes of tensors go in one block of memory, each byte once."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class _Span:
    """Bytes of a storage that are copied as they lie there.

    Args:
        start: First byte in the storage.
        stop: End.
        position: Where they go.
        source: Any tensor of that storage.
    """

    start: int
    stop: int
    position: int
    source: Tensor


class Layout:
    """Where the bytes of tensors go in a block: stretches of storages as they are, tensors with gaps close-packed.

    Args:
        tensors: Plain ones; stretches that touch or overlap go together.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = list({id(tensor): tensor for tensor in tensors}.values())
        self.devices = {tensor.device for tensor in self._tensors}
        self.size = 0
        self._spans: dict[tuple[Any, ...], list[_Span]] = {}
        self._packed: dict[tuple[Any, ...], int] = {}
        self._place_spans()
        for tensor in self._tensors:
            if tensor.numel() and self._span(tensor) is None and _identity(tensor) not in self._packed:
                self._packed[_identity(tensor)] = self._place(tensor.numel() * tensor.dtype.itemsize)

    def copied_to(
        self, block: Tensor, streams: Mapping[torch.device, torch.cuda.Stream] | None = None
    ) -> dict[int, Tensor]:
        """Copy all bytes; the views of the block that stand for the tensors, by their `id`.

        Args:
            block: At least `size` bytes of the host.
            streams: Which stream copies from each device; None where the tensors are not on such devices.
        """
        for span in (span for spans in self._spans.values() for span in spans):
            length = span.stop - span.start
            source = _view(span.source, torch.uint8, span.start, (length,), (1,))
            _copy(block[span.position : span.position + length], source, streams)
        written: set[int] = set()
        return {id(tensor): self._view_of(tensor, block, streams, written) for tensor in self._tensors}

    def _view_of(
        self,
        tensor: Tensor,
        block: Tensor,
        streams: Mapping[torch.device, torch.cuda.Stream] | None,
        written: set[int],
    ) -> Tensor:
        if not tensor.numel():
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        span = self._span(tensor)
        if span is not None:
            position = span.position + _extent(tensor)[0] - span.start
            return _view(block, tensor.dtype, position, tuple(tensor.shape), tensor.stride())
        position = self._packed[_identity(tensor)]
        view = _view(block, tensor.dtype, position, tuple(tensor.shape), _packed_strides(tensor))
        if position not in written:
            written.add(position)
            _copy(_bits(view), _bits(tensor.detach().resolve_conj().resolve_neg()), streams)
        return view

    def _place_spans(self) -> None:
        stretches: dict[tuple[Any, ...], list[tuple[int, int, int]]] = defaultdict(list)
        for index, tensor in enumerate(self._tensors):
            if tensor.numel() and _is_gapless(tensor):
                stretches[_storage(tensor)].append((*_extent(tensor), index))
        for storage, found in stretches.items():
            merged: list[list[int]] = []
            for start, stop, index in sorted(found):
                if merged and start <= merged[-1][1]:
                    merged[-1][1] = max(merged[-1][1], stop)
                else:
                    merged.append([start, stop, index])
            self._spans[storage] = list(starmap(self._span_at, merged))

    def _span_at(self, start: int, stop: int, index: int) -> _Span:
        # Aligned as in its storage, so that tensors of every dtype can lie in it.
        return _Span(start, stop, self._place(stop - start, start % _ALIGNMENT), self._tensors[index])

    def _place(self, length: int, offset: int = 0) -> int:
        position = -(-self.size // _ALIGNMENT) * _ALIGNMENT + offset
        self.size = position + length
        return position

    def _span(self, tensor: Tensor) -> _Span | None:
        """The stretch that a tensor's elements are in, if they are copied as they lie."""
        spans = self._spans.get(_storage(tensor), [])
        start, stop = _extent(tensor)
        index = bisect_right(spans, start, key=lambda span: span.start) - 1
        fits = index >= 0 and stop <= spans[index].stop and not (tensor.is_conj() or tensor.is_neg())
        return spans[index] if fits else None


def _copy(target: Tensor, source: Tensor, streams: Mapping[torch.device, torch.cuda.Stream] | None) -> None:
    if streams is None:
        target.copy_(source)
        return
    with torch.cuda.stream(streams[source.device]):
        target.copy_(source, non_blocking=True)


def _storage(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    lies = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return *_storage(tensor), *lies, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _extent(tensor: Tensor) -> tuple[int, int]:
    """First byte and end of a tensor's elements in its storage."""
    steps = sum(int((size - 1) * stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.dtype.itemsize
    return start, start + (steps + 1) * tensor.dtype.itemsize


def _is_gapless(tensor: Tensor) -> bool:
    """Whether the stretch that holds a tensor's elements takes no more bytes than they do."""
    start, stop = _extent(tensor)
    return stop - start <= tensor.numel() * tensor.dtype.itemsize and not (tensor.is_conj() or tensor.is_neg())


def _view(
    tensor: Tensor, dtype: torch.dtype, position: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    """Another view of a tensor's storage, from byte `position` on."""
    empty = torch.empty(0, dtype=dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), position // dtype.itemsize, shape, strides)


def _packed_strides(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta").stride()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(_BITS[tensor.dtype.itemsize]) if tensor.dtype.itemsize in _BITS else tensor
