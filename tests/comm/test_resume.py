import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from gradwire.comm import AllReduce, attach

UPDATES, STOP = 8, 4


def _model():
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(37, 37), nn.BatchNorm1d(37), nn.Tanh())]
    return nn.Sequential(*layers)


def _train(rank, size, port, folder, first, last, source, target):
    """Updates `first` to `last` in a process of their own, from the snapshot `source`; all is left in `target`."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = _model()
    reducer = attach(model, AllReduce(), op="sum", bucket_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if source is not None:
        snapshot = torch.load(folder / f"{source}-{rank}.pt")
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        reducer.load_state_dict(snapshot["reducer"])
    history = []
    for update in range(first, last):
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
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "reducer": reducer.state_dict()}
    torch.save({**state, "history": history}, folder / f"{target}-{rank}.pt")
    dist.destroy_process_group()


def _run(size, folder, *arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_train, args=(size, port, folder, *arguments), nprocs=size)


def _tensors(snapshot):
    states = snapshot["optimizer"]["state"]
    yield from snapshot["model"].items()
    yield from ((f"{place}.{name}", value) for place, state in states.items() for name, value in state.items())


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_run_resumed_in_fresh_processes_has_the_same_bits(tmp_path, size):
    _run(size, tmp_path, 0, UPDATES, None, "whole")
    _run(size, tmp_path, 0, STOP, None, "first")
    _run(size, tmp_path, STOP, UPDATES, "first", "second")
    for rank in range(size):
        whole, first, second = (torch.load(tmp_path / f"{name}-{rank}.pt") for name in ("whole", "first", "second"))
        resumed = [*first["history"], *second["history"]]
        for update, (one, other) in enumerate(zip(whole["history"], resumed, strict=True)):
            assert all(map(torch.equal, one, other)), f"gradients of update {update} on rank {rank}"
        for (name, one), (_, other) in zip(_tensors(whole), _tensors(second), strict=True):
            assert torch.equal(one, other), f"{name} on rank {rank}"
