import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from benchmarks.processes import FORKED
from gradwire.comm import AllReduce, attach

RANKS = 4
UPDATES, STOP = 8, 4


def _model():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(37, 37), nn.BatchNorm1d(37), nn.Tanh())]
    return nn.Sequential(*layers)


def _train(reducer, model, optimizer, rank, updates, at_stop=None):
    """The gradients of each of these updates; `at_stop` is called before update `STOP`."""
    history = []
    for update in updates:
        if update == STOP and at_stop is not None:
            at_stop()
        optimizer.zero_grad()
        for micro in range(2):
            inputs = torch.randn(9, 37, generator=torch.Generator().manual_seed(1000 * update + 10 * micro + rank))
            if micro == 0:
                with reducer.no_sync():
                    model(inputs).sin().mean().backward()
            else:
                model(inputs).sin().mean().backward()
        history.append([parameter.grad.clone() for parameter in model.parameters()])
        optimizer.step()
    return history


def _states(reducer, model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "reducer": reducer.state_dict()}


def _undisturbed(rank, place):
    """A whole run, which leaves a snapshot on the way."""
    parts = _parts()
    history = _train(*parts, rank, range(UPDATES), lambda: torch.save(_states(*parts), f"{place}-snapshot.pt"))
    torch.save({**_states(*parts), "history": history}, f"{place}-whole.pt")


def _resumed(rank, place):
    """The second half from the snapshot, and afterwards the first one from the beginning."""
    parts = _parts()
    snapshot = torch.load(f"{place}-snapshot.pt")
    for part, name in zip(parts, ("reducer", "model", "optimizer"), strict=True):
        part.load_state_dict(snapshot[name])
    second = _train(*parts, rank, range(STOP, UPDATES))
    state = _states(*parts)
    first = _train(*_parts(), rank, range(STOP))
    torch.save({**state, "history": first + second}, f"{place}-resumed.pt")


def _parts():
    model = _model()
    reducer = attach(model, AllReduce(), op="sum", bucket_mb=0.01)
    return reducer, model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def _on_ranks(rank, folder, run):
    """`run` on every number of ranks in turn, in a process of their own."""
    torch.set_num_threads(1)
    for size in range(rank + 1, RANKS + 1):
        meeting = f"file://{folder}/{run.__name__}-{size}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        run(rank, folder / f"{size}-{rank}")
        dist.destroy_process_group()
    os._exit(0)  # at once: on its way down, an interpreter can abort over gloo's threads


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Snapshots of runs in processes of their own, and of their continuations in fresh ones."""
    folder = tmp_path_factory.mktemp("resume")
    for run in (_undisturbed, _resumed):
        mp.start_processes(_on_ranks, (folder, run), RANKS, start_method=FORKED.get_start_method())
    return folder


def _tensors(snapshot):
    states = snapshot["optimizer"]["state"]
    yield from snapshot["model"].items()
    yield from ((f"{place}.{name}", value) for place, state in states.items() for name, value in state.items())


@pytest.mark.slow
@pytest.mark.parametrize("size", range(1, RANKS + 1))
def test_a_run_resumed_in_fresh_processes_has_the_same_bits(runs, size):
    for rank in range(size):
        whole, resumed = (torch.load(runs / f"{size}-{rank}-{name}.pt") for name in ("whole", "resumed"))
        assert len(whole["history"]) == UPDATES
        for update, (one, other) in enumerate(zip(whole["history"], resumed["history"], strict=True)):
            assert all(map(torch.equal, one, other)), f"gradients of update {update} on rank {rank}"
        for (name, one), (_, other) in zip(_tensors(whole), _tensors(resumed), strict=True):
            assert torch.equal(one, other), f"{name} on rank {rank}"
