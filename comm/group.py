"""What is needed of torch's process groups: size and rank, groups of one's own, and errors that say what failed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.errors import CollectiveError


def initialized() -> bool:
    """Whether this process has joined others."""
    return dist.is_available() and dist.is_initialized()


def size_of(group: dist.ProcessGroup | None) -> int:
    """Ranks of `group` (of all processes where None); 1 where there is no process group."""
    return dist.get_world_size(group) if initialized() else 1


def rank_of(group: dist.ProcessGroup | None) -> int:
    """This process's rank within `group`; 0 where there is no process group."""
    return dist.get_rank(group) if initialized() else 0


def control_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where small tensors of `group` live: the CPU wherever its backend can carry them."""
    backend = dist.get_backend_config(group)
    return torch.device("cpu" if "cpu:" in backend else "cuda")


def own_group(group: dist.ProcessGroup | None, device: torch.device, backend: str | None = None) -> dist.ProcessGroup:
    """A new group of the same ranks with the same time-out, so that collectives do not mix with anybody else's.

    A collective over the ranks of `group`.
    """
    parent = group or dist.group.WORLD
    assert parent is not None, "dist.init_process_group comes first"
    with named(f"creating a group beside {parent.group_name}", parent):
        created = dist.new_group(
            dist.get_process_group_ranks(parent),
            timeout=timeout_of(parent, device),
            backend=backend,
            use_local_synchronization=size_of(parent) < dist.get_world_size(),
        )
    assert isinstance(created, dist.ProcessGroup)
    return created


def give_up(group: dist.ProcessGroup) -> None:
    """Destroy a group that this library created, whose backend keeps a thread for it. A collective; nothing under way.

    Groups stay once this process has one that was created by its own ranks alone: torch names these by their ranks and
    by how many groups there are, so with fewer a later one could get the name of an earlier, and meet its addresses.
    """
    if all(name.isdigit() for name in dist.distributed_c10d._world.pg_names.values()):
        dist.destroy_process_group(group)


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """How long a collective of the group may take, where its backend tells."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None


def gather_rows(row: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Every rank's `row`, stacked by rank (a small CPU tensor of the same shape everywhere)."""
    if not initialized():
        return row[None]
    here = row.to(control_device(group))
    rows = [torch.empty_like(here) for _ in range(size_of(group))]
    with named("gathering a small tensor", group):
        dist.all_gather(rows, here, group=group)
    await_release(here, *rows)
    return torch.stack(rows).cpu()


def await_release(*tensors: Tensor) -> None:
    """After a collective, wait for the moment until the backend's thread has let go of tensors made for it alone.

    Else that thread may be the last to hold one: it takes the interpreter's lock to free it, and one that comes for the
    lock while the interpreter ends aborts the process.
    """
    mine = [tensor for tensor in tensors if tensor.device.type == "cpu"]
    end = time.monotonic() + _RELEASE
    while any(tensor._use_count() > 1 for tensor in mine) and time.monotonic() < end:  # type: ignore[attr-defined]
        time.sleep(1e-5)


_RELEASE = 1.0  # seconds


@contextmanager
def named(what: str, group: dist.ProcessGroup | None) -> Iterator[None]:
    """Turn what torch raises inside the block into CollectiveError, with the words `what`."""
    try:
        yield
    except CollectiveError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CollectiveError(
            f"{what} failed on rank {rank_of(group)} of {size_of(group)}: {reason}. A peer has died, hangs, or made "
            "another call; look at the other ranks' logs, then start all ranks again"
        ) from error
