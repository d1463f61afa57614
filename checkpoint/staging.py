"""A copy of the state that is being saved, so that training goes on while the copy is written."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor

from gradwire.checkpoint.errors import StateTooLarge, UnsupportedState
from gradwire.checkpoint.layout import Layout
from gradwire.checkpoint.sharded import Sharded
from gradwire.checkpoint.state import State
from gradwire.checkpoint.tensors import check_storable
from gradwire.checkpoint.tree import DEEPEST

Convert = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Staged:
    """A state that nobody changes while it is written.

    Args:
        state: Its trees; tensors are views of the staging's memory.
        nbytes: Bytes that were copied; what several tensors share counts once.
        ready: Blocks until all bytes have arrived.
    """

    state: State
    nbytes: int
    ready: Callable[[], None]


class Staging:
    """Memory for one copy of a state, used again for the next one.

    Tensors that share memory are copied once and share it again. Tensors on a CUDA device go to pinned memory on a
    stream of their own, between what the current stream did before and what it does next.
    """

    def __init__(self) -> None:
        self._plain = _Memory(pinned=False)
        self._pinned = _Memory(pinned=True)
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def copy(self, state: State) -> Staged:
        """Copy a state; the one copied before is overwritten.

        Raises:
            UnsupportedState: something cannot be saved.
            StateTooLarge: there is no memory for the copy (nothing is allocated then).
        """
        tensors = _tensors_of(state)
        plain = Layout(tensor for tensor in tensors if not tensor.is_cuda)
        pinned = Layout(tensor for tensor in tensors if tensor.is_cuda)
        views = plain.copied_to(self._plain.take(plain.size))
        pinned_views, ready = self._from_devices(pinned)
        views.update(pinned_views)

        def view(path: str, tensor: Tensor) -> Tensor:
            return views[id(tensor)]

        copied = State(_map(state.shared, view, "shared"), _map(state.local, view, "local"), state.not_captured)
        return Staged(copied, plain.size + pinned.size, ready)

    def release(self) -> None:
        """Give the memory back."""
        self._plain.release()
        self._pinned.release()

    def _from_devices(self, layout: Layout) -> tuple[dict[int, Tensor], Callable[[], None]]:
        memory = self._pinned.take(layout.size)
        streams = {device: self._stream(device) for device in layout.devices}
        for device, stream in streams.items():
            stream.wait_stream(torch.cuda.current_stream(device))
        views = layout.copied_to(memory, streams)
        for device, stream in streams.items():
            torch.cuda.current_stream(device).wait_stream(stream)  # what comes next must not change what is copied
        events = [stream.record_event() for stream in streams.values()]

        def ready() -> None:
            for event in events:
                event.synchronize()

        return views, ready

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[device]


def bytes_of(tree: Any) -> int:
    """Bytes of a tree's tensors; what several of them share counts once.

    Raises:
        UnsupportedState: something cannot be saved.
    """
    return Layout(_tensors_of(State({}, tree))).size


def slices_of(tree: Any) -> list[Tensor]:
    """The slices that this rank holds of a tree's sharded tensors."""
    return [each.data for found in _sharded(tree) for each in found.slices if not each.data.is_meta]


def _sharded(node: Any) -> Iterator[Sharded]:
    if isinstance(node, Sharded):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from _sharded(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _sharded(value)


def _tensors_of(state: State) -> list[Tensor]:
    """The tensors, in order."""
    tensors: list[Tensor] = []

    def note(path: str, tensor: Tensor) -> Tensor:
        check_storable(tensor, path)
        tensors.append(tensor)
        return tensor

    _map(state.shared, note, "shared")
    _map(state.local, note, "local")
    return tensors


def _map(node: Any, convert: Convert, path: str, depth: int = 0) -> Any:
    """A tree of the same structure, its tensors converted; what a tree cannot hold stays, to be named when written."""
    if depth > DEEPEST:
        raise UnsupportedState(f"{path[:200]} is nested more than {DEEPEST} levels deep")
    if isinstance(node, Tensor):
        return convert(path, node)
    if isinstance(node, Sharded):
        return node.mapped(partial(convert, path))
    if isinstance(node, Mapping):
        return {key: _map(value, convert, f"{path}.{key}", depth + 1) for key, value in node.items()}
    if isinstance(node, list | tuple):
        values = [_map(value, convert, f"{path}[{index}]", depth + 1) for index, value in enumerate(node)]
        return values if isinstance(node, list) else tuple(values)
    return node


class _Memory:
    """One block of the host's memory, kept for the next time.

    Args:
        pinned: Whether devices copy to it on their own.
    """

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._block = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """A block of at least `size` bytes: the present one, unless it is too small or more than twice too large."""
        if not size <= len(self._block) <= 2 * size:
            self.release()
            self._block = self._allocated(size)
        return self._block

    def release(self) -> None:
        if self._pinned and len(self._block):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cudart.cudaHostUnregister(self._block.data_ptr())
        self._block = torch.empty(0, dtype=torch.uint8)

    def _allocated(self, size: int) -> Tensor:
        free = psutil.virtual_memory().available
        if size > free:
            raise StateTooLarge(
                f"the staged copy of the state takes {size} bytes and {free} bytes of memory are free; with stage "
                "'none' nothing is copied, and training waits until the snapshot is written"
            )
        block = torch.empty(size, dtype=torch.uint8)
        if self._pinned and size:  # registered: torch's allocator of pinned memory rounds up to a power of two
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(int(cudart.cudaHostRegister(block.data_ptr(), size, 0)))
        return block
