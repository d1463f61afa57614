import copy

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm import AllReduce, attach
from tests.comm.models import assert_same_bits_everywhere, gradients


class _Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.tags = nn.Embedding(50, 8, sparse=True), nn.EmbeddingBag(20, 8, mode="sum", sparse=True)
        self.head = nn.Linear(8, 4)

    def forward(self, words, tags=None):
        hidden = self.words(words).mean(1)
        return self.head(hidden if tags is None else hidden + self.tags(tags))


def _words(rank, step=0):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(50, (3 + rank, 5), generator=generator), torch.randint(20, (3 + rank, 2), generator=generator)


def _like_ddp(rank, op, accumulated):
    torch.manual_seed(0)
    model = _Tables()
    ddp = DistributedDataParallel(copy.deepcopy(model))
    reducer = attach(model, AllReduce(), op=op)
    if accumulated:
        with reducer.no_sync(), ddp.no_sync():
            for each in (model, ddp):
                each(*_words(rank, step=1)).square().sum().backward()
    for each in (model, ddp):
        each(*_words(rank)).square().sum().backward()
    assert model.words.weight.grad.is_sparse and model.tags.weight.grad.is_sparse
    assert_same_bits_everywhere(model)
    for name, value in gradients(ddp.module).items():
        expected = value.to_dense() * (2 if op == "sum" else 1)
        torch.testing.assert_close(gradients(model)[name].to_dense(), expected)


def test_sparse_gradients_stay_sparse_and_equal_ddps(ranks):
    ranks(2, _like_ddp, "mean", False)
    ranks(2, _like_ddp, "sum", False)
    ranks(2, _like_ddp, "mean", True)


def _unused(rank):
    torch.manual_seed(0)
    model = _Tables()
    attach(model, AllReduce(), op="sum")
    words, tags = _words(rank)
    model(words, tags if rank == 1 else None).square().sum().backward()
    assert_same_bits_everywhere(model)
    assert model.tags.weight.grad.to_dense().abs().sum() > 0
    model.zero_grad()
    model(words).square().sum().backward()
    assert model.tags.weight.grad is None and model.words.weight.grad.is_sparse


def test_a_table_used_on_one_rank_or_on_none(ranks):
    ranks(2, _unused)


class _TiedTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True)

    def forward(self, words, tied):
        hidden = self.words(words).mean(1)
        return functional.linear(hidden, self.words.weight) if tied else hidden


def _dense_somewhere(rank):
    torch.manual_seed(0)
    model = _TiedTable()
    alone = [copy.deepcopy(model) for _ in range(2)]
    for other, each in enumerate(alone):
        each(_words(other)[0], other == 1).square().sum().backward()
    attach(model, AllReduce(), op="sum")
    model(_words(rank)[0], rank == 1).square().sum().backward()
    expected = sum(each.words.weight.grad.to_dense() for each in alone)
    torch.testing.assert_close(model.words.weight.grad, expected)
    assert not model.words.weight.grad.is_sparse


def test_a_gradient_that_is_dense_on_one_rank_becomes_dense_on_all(ranks):
    ranks(2, _dense_somewhere)


class _Undeclared(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(50, 8))

    def forward(self, words):
        return functional.embedding(words, self.table, sparse=True).mean(1)


def _undeclared(rank):
    model = _Undeclared()
    attach(model, AllReduce(), op="sum")
    alone = [copy.deepcopy(model) for _ in range(2)]
    for other, each in enumerate(alone):
        each(_words(other)[0]).square().sum().backward()
    model(_words(rank)[0]).square().sum().backward()
    torch.testing.assert_close(model.table.grad, sum(each.table.grad.to_dense() for each in alone))


def test_a_sparse_gradient_that_no_module_declares_is_reduced_densely(ranks):
    ranks(2, _undeclared)


def _observed(rank):
    torch.manual_seed(0)
    model, seen = _Tables(), {}
    alone = copy.deepcopy(model)
    alone(*_words(rank)).square().sum().backward()
    attach(model, AllReduce(), observer=lambda names, flat: seen.update({names: flat.norm()}))
    model(*_words(rank)).square().sum().backward()
    torch.testing.assert_close(seen[("words.weight",)], alone.words.weight.grad.to_dense().norm())


def test_observer_sees_the_local_sparse_gradient(ranks):
    ranks(2, _observed)
