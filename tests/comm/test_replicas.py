import pytest
import torch
from torch import nn

from gradwire.comm import AllReduce, ReplicaMismatch, attach, broadcast_parameters, check_replicas, replicas_hash
from tests.comm.models import mlp


def _finds(rank):
    model = mlp()
    check_replicas(model)
    if rank == 1:
        model[2][0].weight.data[3, 4] += 1e-6
        model[3][0].bias.data.zero_()
    with pytest.raises(ReplicaMismatch, match=r"2\.0\.weight has other bits on rank 1 than on ranks 0, 2; 2 of 8"):
        check_replicas(model)
    broadcast_parameters(model)
    check_replicas(model)


def test_the_first_tensor_that_differs_is_named_with_its_ranks(ranks):
    ranks(3, _finds)


def _kinds(rank):
    model = nn.Module()
    for place, dtype in enumerate(
        [torch.float64, torch.bfloat16, torch.bool, torch.int8, torch.complex64, torch.float16]
    ):
        model.register_buffer(f"b{place}", torch.full((3, 2), rank).to(dtype))
    model.register_buffer("scalar", torch.tensor(float(rank)))
    model.register_buffer("empty", torch.empty(0, 4))
    model.register_buffer("turned", torch.arange(6.0).view(2, 3).t() * rank)
    model.weight = nn.Parameter(torch.full((2, 2), float("nan") if rank else 1.0))
    broadcast_parameters(model)
    check_replicas(model)
    assert model.weight.sum() == 4 and model.turned.abs().sum() == 0 and not model.b2.any()


def test_every_dtype_shape_and_layout_is_broadcast(ranks):
    ranks(2, _kinds)


def _structures(rank):
    with pytest.raises(ReplicaMismatch, match="rank 1 built another module than rank 0"):
        attach(mlp(layers=3 + rank), AllReduce())
    model = mlp()
    model[0].requires_grad_(rank == 0)
    with pytest.raises(ReplicaMismatch, match="what is trainable"):
        attach(model, AllReduce())


def test_modules_that_differ_are_refused(ranks):
    ranks(2, _structures)


def test_the_hash_sees_values_names_and_signs_of_zero():
    one, other = mlp(), mlp()
    assert replicas_hash(one) == replicas_hash(other)
    other[0][0].bias.data.zero_()
    zero = replicas_hash(other)
    other[0][0].bias.data.fill_(-0.0)
    assert len({replicas_hash(one), zero, replicas_hash(other)}) == 3
    assert replicas_hash(nn.Linear(2, 2)) != replicas_hash(nn.Sequential(nn.Linear(2, 2)))


def test_one_process_has_nothing_to_compare():
    check_replicas(mlp())
    broadcast_parameters(mlp())
