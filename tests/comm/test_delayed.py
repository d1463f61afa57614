"""Gradients that come one update late: those of a loop that delays them by hand, whatever happens on the way."""

import pytest
import torch
from torch import nn

from gradwire.comm import AllReduce, AttachError, BackwardError, CommError, Topology, attach
from tests.comm.models import assert_same_bits_everywhere, data, gradients, mlp

SMALL = 0.002  # MiB: several buckets for the smallest module
CODECS = ["native", "int8", "int4", "top_k", "dgc", "power_sgd"]
UPDATES = 7


def attached(codec, overlap, op="mean", **options):
    model = mlp()
    codecs = {} if codec == "native" else {"ring": codec}
    topology = Topology(ring=torch.distributed.get_world_size()) if codecs else None
    reducer = attach(model, AllReduce(topology, codecs=codecs), op=op, bucket_mb=SMALL, overlap=overlap, **options)
    return model, reducer, torch.optim.AdamW(model.parameters(), lr=1e-2)


def backward(model, rank, update, reducer, poison=False):
    """Two micro-batches, of which the second one reduces."""
    with reducer.no_sync():
        model(data(rank, step=2 * update)).square().mean().backward()
    reducer.carry([update, rank])
    loss = model(data(rank, step=2 * update + 1)).square().mean()
    (loss * float("nan") if poison else loss).backward()


def is_finite(model):
    return all(each.isfinite().all() for each in gradients(model).values())


def train_late(model, reducer, optimizer, rank, first, last, poisoned=-1, told=True, set_to_none=True):
    """Updates `first` to `last` by a delayed reducer; the gradients given and what was carried with each."""
    given = []
    for update in range(first, last):
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(model, rank, update, reducer, poison=update == poisoned and rank == 1)
        given.append((gradients(model), reducer.carried))
        kept = is_finite(model)
        if kept:
            optimizer.step()
        if told:
            reducer.settle(kept)
    return given


def train_by_hand(model, reducer, optimizer, rank, updates, poisoned=-1):
    """The same by a reducer that gives every gradient at once: each is put aside until the next update."""
    aside, carried, given = {}, [0, 0], []
    for update in range(updates):
        optimizer.zero_grad()
        backward(model, rank, update, reducer, poison=update == poisoned and rank == 1)
        reducer.settle(is_finite(model))
        late, aside = aside, gradients(model)
        given.append((late, carried))
        carried = reducer.carried
        for name, parameter in model.named_parameters():
            parameter.grad = late.get(name)
        if is_finite(model):
            optimizer.step()
    return given


def same(some, others):
    assert some.keys() == others.keys()
    for name, value in some.items():
        torch.testing.assert_close(value, others[name], rtol=0, atol=0, equal_nan=True, msg=name)


def assert_same_history(found, expected):
    for (gradient, carried), (other, numbers) in zip(found, expected, strict=True):
        same(gradient, other)
        assert carried == numbers


def _by_hand(rank, codec, op, set_to_none):
    late, hand = attached(codec, "update", op), attached(codec, "backward", op)
    found = train_late(*late, rank, 0, UPDATES, set_to_none=set_to_none)
    assert found[0] == ({}, [0, 0])
    assert_same_history(found, train_by_hand(*hand, rank, UPDATES))
    same(late[0].state_dict(), hand[0].state_dict())
    assert late[2].state_dict()["state"][0]["step"] == UPDATES - 1


@pytest.mark.parametrize("codec", CODECS)
def test_the_weights_are_those_of_a_loop_that_delays_gradients_by_hand(ranks, codec):
    ranks(2, _by_hand, codec, "mean", True)


@pytest.mark.parametrize("op", ["sum", "mean"])
def test_so_they_are_with_sums_and_where_gradients_are_cleared_in_place(ranks, op):
    ranks(3, _by_hand, "int4", op, False)


def _nobody_says(rank, codec):
    told, untold = attached(codec, "update"), attached(codec, "update")
    expected = train_late(*told, rank, 0, UPDATES)
    assert_same_history(train_late(*untold, rank, 0, UPDATES, told=False), expected)
    assert_same_bits_everywhere(untold[0])


@pytest.mark.parametrize("codec", ["native", "int4"])
def test_a_plain_loop_need_not_say_what_became_of_a_gradient(ranks, codec):
    ranks(2, _nobody_says, codec)


def _poisoned(rank, codec, told):
    late, hand = attached(codec, "update"), attached(codec, "backward")
    found = train_late(*late, rank, 0, UPDATES, poisoned=2, told=told)
    assert [update for update, (gradient, _) in enumerate(found) if any(map(_has_nan, gradient.values()))] == [3]
    assert_same_history(found, train_by_hand(*hand, rank, UPDATES, poisoned=2))
    same(late[0].state_dict(), hand[0].state_dict())
    for parts in late[1].state_dict()["residuals"].values():
        assert all(saved["values"].isfinite().all() for saved in parts.values())


def _has_nan(gradient):
    return bool(gradient.isnan().any())


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("codec", ["int4", "top_k"])
def test_a_gradient_with_nan_is_seen_one_update_late_and_poisons_no_residual(ranks, codec, told):
    ranks(2, _poisoned, codec, told)


def _resumes(rank, codec, folder):
    model, reducer, optimizer = attached(codec, "update")
    train_late(model, reducer, optimizer, rank, 0, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "reducer": reducer.state_dict()}
    torch.save(state, folder / f"{rank}.pt")
    expected = train_late(model, reducer, optimizer, rank, 3, UPDATES)
    undisturbed = attached(codec, "update")
    assert_same_history(train_late(*undisturbed, rank, 0, UPDATES)[3:], expected)  # saving changes nothing
    reducer.detach()
    for used in (False, True):
        again = attached(codec, "update")
        if used:  # one that has a gradient of its own under way
            train_late(*again, rank, 9, 12)
        saved = torch.load(folder / f"{rank}.pt")
        for each, part in zip(again, ("model", "reducer", "optimizer"), strict=True):
            each.load_state_dict(saved[part])
        assert_same_history(train_late(*again, rank, 3, UPDATES), expected)
        same(again[0].state_dict(), model.state_dict())


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_goes_on_from_its_state_with_the_same_bits(ranks, tmp_path, codec):
    ranks(2, _resumes, codec, tmp_path)


def _states(rank, folder):
    model, reducer, optimizer = attached("int4", "update", "sum")
    train_late(model, reducer, optimizer, rank, 0, 3)
    states = [None] * 2
    torch.distributed.all_gather_object(states, reducer.state_dict())
    same(*(state["in_flight"]["gradients"] for state in states))
    if rank == 0:
        torch.save(states, folder / "states.pt")


def _moved(rank, size, folder):
    states = torch.load(folder / "states.pt")
    model, reducer, optimizer = attached("native", "update", "sum")
    reducer.load_state_dicts(states)
    ((gradient, carried), *_) = train_late(model, reducer, optimizer, rank, 3, 5)
    same(gradient, states[0]["in_flight"]["gradients"])
    assert carried == [2 * 2, 1]
    with pytest.raises(CommError, match="no such parameter"):
        reducer.load_state_dicts([{"in_flight": {"gradients": {"other": torch.zeros(2)}, "carried": []}}])
    with pytest.raises(CommError, match=r"has the shape \[2\]; the module has \[24, 24\]"):
        reducer.load_state_dict({"in_flight": {"gradients": {"0.0.weight": torch.zeros(2)}, "carried": []}})


@pytest.mark.parametrize("size", [1, 3])
def test_on_other_ranks_the_gradient_under_way_is_still_given(ranks, tmp_path, size):
    ranks(2, _states, tmp_path)
    ranks(size, _moved, size, tmp_path)


class TwoWays(nn.Module):
    """Uses one of two layers, and never the third."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.idle = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, left):
        return (self.left if left else self.right)(x)


def _unused(rank):
    late, hand = TwoWays(), TwoWays()
    reducers = [
        attach(module, AllReduce(), bucket_mb=1e-5, overlap=overlap)
        for module, overlap in ((late, "update"), (hand, "backward"))
    ]
    before = {}
    for update in range(4):
        for module in (late, hand):
            module.zero_grad()
            module(data(rank, width=4, step=update), left=update % 2 == rank).sum().backward()
        same(gradients(late), before)
        before = gradients(hand)
        assert before.keys() == {"left.weight", "left.bias", "right.weight", "right.bias"}
    for reducer in reducers:
        reducer.detach()
    assert all(each.grad is not None for each in late.left.parameters())


def test_parameters_that_a_rank_does_not_use_come_late_too_and_unused_ones_not_at_all(ranks):
    ranks(2, _unused)


def _uncleared(rank):
    model, reducer, _ = attached("native", "update")
    for update in range(2):
        model.zero_grad()
        backward(model, rank, update, reducer)
    with pytest.raises(BackwardError, match="not cleared"):
        backward(model, rank, 2, reducer)


def test_gradients_that_were_not_cleared_are_refused(ranks):
    ranks(2, _uncleared)


class Breaking(torch.autograd.Function):
    """Passes values on, and raises in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("out of memory")


def _interrupted(rank):
    model, reducer, optimizer = attached("native", "update")
    train_late(model, reducer, optimizer, rank, 0, 2)
    optimizer.zero_grad()
    hidden = model[0](data(rank))
    outputs = model(Breaking.apply(hidden) if rank == 1 else hidden)
    if rank == 1:
        with pytest.raises(ValueError, match="out of memory"):
            outputs.sum().backward()
        with pytest.raises(BackwardError, match="the other ranks have gone on"):
            model(data(rank))
    else:
        outputs.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(BackwardError, match="failed on rank 1"):
            model(data(rank)).sum().backward()
    with pytest.raises(CommError, match="out of step"):
        optimizer.zero_grad()
        model(data(rank)).sum().backward()


def test_a_backward_that_fails_on_one_rank_ends_the_run_on_all(ranks):
    ranks(2, _interrupted)


def _refused(rank):
    embedding = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4))
    with pytest.raises(AttachError, match=r"0\.weight has sparse gradients"):
        attach(embedding, AllReduce(), overlap="update")
    with pytest.raises(AttachError, match="expected one of backward, update"):
        attach(mlp(), AllReduce(), overlap="never")
    _, reducer, _ = attached("int8", "update")
    reducer.rescale(1.0)
    with pytest.raises(CommError, match="loss scale"):
        reducer.rescale(0.5)
    with pytest.raises(CommError, match="nothing is recorded"):
        reducer.record(True)
    with pytest.raises(CommError, match="cannot be put back"):
        reducer.install([])


def test_what_cannot_come_late_is_refused(ranks):
    ranks(2, _refused)


def _traffic(rank):
    model, reducer, optimizer = attached("int4", "update")
    train_late(model, reducer, optimizer, rank, 0, 2)
    first = reducer.take_traffic()["ring"]
    assert reducer.take_traffic() == {}
    train_late(model, reducer, optimizer, rank, 2, 3)
    state = reducer.state_dict()
    assert reducer.take_traffic()["ring"].sent == first.sent
    again, resumed, other = attached("int4", "update")
    resumed.load_state_dict(state)
    again.load_state_dict(model.state_dict())
    train_late(model, reducer, optimizer, rank, 3, 4)
    train_late(again, resumed, other, rank, 3, 4)
    assert reducer.take_traffic()["ring"].error == resumed.take_traffic()["ring"].error > 0


def test_traffic_is_that_of_the_gradients_given_and_errors_survive_a_snapshot(ranks):
    ranks(2, _traffic)


def test_a_single_process_delays_as_well(tmp_path):
    model, other = mlp(), mlp()
    attach(model, AllReduce(), overlap="update")
    model(data(0)).sum().backward()
    assert gradients(model) == {}
    other(data(0)).sum().backward()
    model(data(1)).sum().backward()
    same(gradients(model), gradients(other))
