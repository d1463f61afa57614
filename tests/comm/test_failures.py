import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.processes import FORKED
from gradwire.comm import AllReduce, BackwardError, CommError, attach
from gradwire.trainer.launch.ports import free_port
from tests.comm.models import assert_close, assert_same_bits_everywhere, data, gradients, local_gradients, mlp, summed

SMALL = 0.002


class _Faulty(torch.autograd.Function):
    """Raises in backward where it is told to."""

    @staticmethod
    def forward(ctx, inputs, faulty):
        ctx.faulty = faulty
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.faulty:
            raise ArithmeticError("planted")
        return gradient, None


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.faulty = mlp(), False

    def forward(self, inputs):
        for place, layer in enumerate(self.layers):
            inputs = layer(inputs if place != 2 else _Faulty.apply(inputs, self.faulty))
        return inputs


def _in_step_afterwards(rank, model):
    for step in range(2):
        model.zero_grad()
        expected = summed(local_gradients(model, data(rank, step=step)))
        model(data(rank, step=step)).square().mean().backward()
        assert_close(gradients(model), expected)
        assert_same_bits_everywhere(model)


def _all_fail(rank):
    model = _Model()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    model.faulty = True
    with pytest.raises(ArithmeticError, match="planted"):
        model(data(rank)).square().mean().backward()
    model.faulty = False
    _in_step_afterwards(rank, model)


def test_an_exception_in_every_ranks_backward_leaves_the_reducer_usable(ranks):
    ranks(2, _all_fail)


def _one_fails(rank):
    model = _Model()
    reducer = attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    model.faulty = rank == 1
    with pytest.raises(ArithmeticError if rank == 1 else BackwardError, match=r"planted|failed on rank 1"):
        try:
            model(data(rank)).square().mean().backward()
        finally:
            model.faulty = False
            reducer.recover()
    _in_step_afterwards(rank, model)


def test_an_exception_in_one_ranks_backward_is_named_on_the_others(ranks):
    ranks(3, _one_fails)


def _recovers_in_forward(rank):
    model = _Model()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    model.faulty = rank == 1
    if rank == 1:
        with pytest.raises(ArithmeticError, match="planted"):
            model(data(rank)).square().mean().backward()
    else:
        with pytest.raises(BackwardError, match="failed on rank 1"):
            model(data(rank)).square().mean().backward()
    model.faulty = False
    with torch.no_grad():
        model(data(rank))
    _in_step_afterwards(rank, model)


def test_the_next_forward_recovers_by_itself(ranks):
    ranks(2, _recovers_in_forward)


def _observer_fails(rank):
    model, calls = mlp(), []

    def observer(names, flat):
        calls.append(names)
        if len(calls) == 2:
            raise ArithmeticError("planted")

    attach(model, AllReduce(), op="sum", bucket_mb=SMALL, observer=observer)
    with pytest.raises(ArithmeticError, match="planted"):
        model(data(rank)).square().mean().backward()
    _in_step_afterwards(rank, model)


def test_an_exception_of_the_observer_leaves_the_reducer_usable(ranks):
    ranks(2, _observer_fails)


def _survivor(rank, port, answers, blow, moment):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, 3, is_master=rank == 0)  # waits until all are there, however long it takes
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=6))
    model = mlp()
    model.register_buffer("position", torch.zeros(3))
    attach(model, AllReduce(), bucket_mb=SMALL)
    model(data(rank)).square().mean().backward()
    if rank == 1:
        strike = lambda *_: os.kill(os.getpid(), blow)  # noqa: E731
        if moment == "forward":
            strike()
        model[1][0].weight.register_hook(strike)  # two buckets are on their way by then
    start = time.monotonic()
    try:
        model(data(rank)).square().mean().backward()
    except CommError as error:
        first = str(error), time.monotonic() - start
    try:
        model.zero_grad()
        model(data(rank)).square().mean().backward()
    except CommError as error:
        answers.put((*first, str(error)))
    os._exit(0)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_a_dead_or_stopped_peer_raises_within_the_groups_timeout(blow, moment):
    port = free_port()
    answers = FORKED.SimpleQueue()
    processes = [FORKED.Process(target=_survivor, args=(rank, port, answers, blow, moment)) for rank in range(3)]
    for process in processes:
        process.start()
    try:
        for survivor in (processes[0], processes[2]):
            survivor.join(240)
            assert not answers.empty()
            message, seconds, again = answers.get()
            assert "A peer has died, hangs" in message
            assert "the gradients of bucket" in message or (moment == "forward" and "broadcasting buffers" in message)
            assert seconds < 60  # the time-out is 6 s
            assert again
    finally:
        for process in processes:
            process.kill()
            process.join()
