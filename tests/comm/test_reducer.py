import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gradwire.comm import AllReduce, AttachError, BackwardError, attach
from tests.comm.models import (
    Branches,
    assert_close,
    assert_same_bits_everywhere,
    data,
    gradients,
    local_gradients,
    mlp,
    summed,
)

SMALL = 0.002  # MiB: several buckets for the smallest module


def _divided(values, count):
    return {name: value / count for name, value in values.items()}


def _mean(rank):
    size = dist.get_world_size()
    model = mlp()
    expected = _divided(summed(local_gradients(model, data(rank))), size)
    ddp = DistributedDataParallel(copy.deepcopy(model))
    reducer = attach(model, AllReduce(), bucket_mb=SMALL)
    assert len(reducer.buckets) > 1
    model(data(rank)).square().mean().backward()
    ddp(data(rank)).square().mean().backward()
    assert_close(gradients(model), gradients(ddp.module))
    assert_close(gradients(model), expected)
    assert_same_bits_everywhere(model)
    if size == 2:
        assert all(torch.equal(value, gradients(ddp.module)[name]) for name, value in gradients(model).items())


@pytest.mark.parametrize("size", [2, 3])
def test_mean_gradients_are_ddps_and_the_same_bits_on_every_rank(ranks, size):
    ranks(size, _mean)


def _sum(rank):
    model = mlp()
    expected = summed(local_gradients(model, data(rank)))
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    model(data(rank)).square().mean().backward()
    assert_close(gradients(model), expected)
    assert_same_bits_everywhere(model)


def test_sum_gradients_are_the_sum_over_ranks(ranks):
    ranks(3, _sum)


def _accumulate(rank, op, set_to_none):
    model = mlp()
    reducer = attach(model, AllReduce(), op=op, bucket_mb=SMALL)
    for update in range(3):
        batches = [data(rank, step=10 * update + micro) for micro in range(3)]
        expected = summed(local_gradients(model, *batches))
        model.zero_grad(set_to_none=set_to_none)
        with reducer.no_sync():
            for batch in batches[:2]:
                model(batch).square().mean().backward()
        model(batches[2]).square().mean().backward()
        assert_close(gradients(model), expected if op == "sum" else _divided(expected, 2))
        assert_same_bits_everywhere(model)


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulated_micro_batches_are_reduced_once(ranks, op, set_to_none):
    ranks(2, _accumulate, op, set_to_none)


def _no_sync(rank):
    model = mlp()
    reducer = attach(model, AllReduce())
    local = local_gradients(model, data(rank))
    with reducer.no_sync():
        model(data(rank)).square().mean().backward()
    assert_close(gradients(model), local)
    reducer.reduce()
    assert_close(gradients(model), _divided(summed(local), 2))


def test_no_sync_keeps_local_gradients_until_reduce(ranks):
    ranks(2, _no_sync)


def _unused(rank):
    torch.manual_seed(0)
    model = Branches()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    for step in range(2):
        model.zero_grad()
        alone = copy.deepcopy(model)
        alone(data(rank, step=step), rank).square().mean().backward()
        model(data(rank, step=step), rank).square().mean().backward()
        found, local = gradients(model), gradients(alone)
        assert_same_bits_everywhere(model)
        used = {name for name in found if name.startswith(("common", "branches.0", "branches.1"))}
        assert found.keys() == used and model.branches[2].weight.grad is None
        own = f"branches.{rank}.weight"
        assert torch.equal(found[own], local[own])


def test_parameters_unused_on_some_ranks_are_reduced_and_unused_on_all_keep_no_gradient(ranks):
    ranks(2, _unused)


def _unused_in_last(rank):
    torch.manual_seed(0)
    model = Branches()
    reducer = attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    with reducer.no_sync():
        model(data(rank), 0).square().mean().backward()
    expected = summed({"g": model.branches[0].weight.grad.clone()})["g"]
    model(data(rank), 1).square().mean().backward()
    torch.testing.assert_close(model.branches[0].weight.grad, expected)


def test_gradients_of_earlier_micro_batches_survive_where_the_last_does_not_use_the_parameter(ranks):
    ranks(2, _unused_in_last)


def _tied(rank):
    model = mlp()
    model[3][0].weight = model[0][0].weight
    expected = _divided(summed(local_gradients(model, data(rank))), 2)
    reducer = attach(model, AllReduce(), bucket_mb=SMALL)
    names = [name for bucket in reducer.buckets for name in bucket.names]
    assert "0.0.weight" in names and "3.0.weight" not in names
    model(data(rank)).square().mean().backward()
    assert_close(gradients(model), expected)


def test_tied_parameters_are_reduced_once(ranks):
    ranks(2, _tied)


def _frozen(rank):
    model = mlp()
    model[1].requires_grad_(False)
    expected = _divided(summed(local_gradients(model, data(rank))), 2)
    reducer = attach(model, AllReduce(), bucket_mb=SMALL)
    assert not any(name.startswith("1.") for bucket in reducer.buckets for name in bucket.names)
    model(data(rank)).square().mean().backward()
    assert model[1][0].weight.grad is None
    assert_close(gradients(model), expected)


def test_frozen_parameters_are_left_out(ranks):
    ranks(2, _frozen)


class _Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(24, 24).bfloat16(), nn.Linear(24, 24)

    def forward(self, inputs):
        return self.high(self.low(inputs.bfloat16()).float())


def _mixed(rank):
    torch.manual_seed(0)
    model = _Mixed()
    alone = copy.deepcopy(model)
    reducer = attach(model, AllReduce(), op="sum")
    assert {bucket.flat.dtype for bucket in reducer.buckets} == {torch.bfloat16, torch.float32}
    model(data(rank)).square().mean().backward()
    alone(data(rank)).square().mean().backward()
    for name, value in summed(gradients(alone)).items():
        assert torch.equal(value, gradients(model)[name])


def test_dtypes_travel_in_buckets_of_their_own(ranks):
    ranks(2, _mixed)


def _training(rank, set_to_none):
    model = mlp()
    ddp = DistributedDataParallel(copy.deepcopy(model))
    attach(model, AllReduce(), bucket_mb=SMALL)
    ours = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for step in range(6):
        for optimizer, each in ((ours, model), (theirs, ddp)):
            optimizer.zero_grad(set_to_none=set_to_none)
            each(data(rank, step=step)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(each.parameters(), 0.01)
            optimizer.step()
    for mine, other in zip(model.parameters(), ddp.module.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_two_ranks_train_to_ddps_bits(ranks, set_to_none):
    ranks(2, _training, set_to_none)


def _layout(rank):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).to(memory_format=torch.channels_last)
    attach(model, AllReduce())
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    model(images).square().mean().backward()
    assert model[1].weight.grad.stride() == model[1].weight.stride() != (72, 9, 3, 1)
    assert_same_bits_everywhere(model)


def test_gradients_have_their_parameters_memory_layout(ranks):
    ranks(2, _layout)


def _start(rank):
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.float32)
    model[1].running_mean.fill_(rank)
    model[0].bias.requires_grad_(False)
    attach(model, AllReduce())
    torch.manual_seed(0)
    reference = nn.Linear(4, 4)
    assert torch.equal(model[0].weight, reference.weight) and torch.equal(model[0].bias, reference.bias)
    assert torch.equal(model[1].running_mean, torch.zeros(4))


def test_attach_gives_every_rank_the_first_ranks_parameters_and_buffers(ranks):
    ranks(3, _start)


def _overlap(rank):
    model, events = mlp(), []
    model[0][0].weight.register_hook(lambda _: events.append("first layer"))
    attach(model, AllReduce(), bucket_mb=SMALL, observer=lambda names, _: events.append(names))
    model(data(rank)).square().mean().backward()
    assert events.index("first layer") >= 3  # the buckets of the later layers are on their way by then
    assert "0.0.weight" in events[-1]


def test_buckets_are_sent_while_backward_runs(ranks):
    ranks(2, _overlap)


def _observe(rank):
    model, seen = mlp(), {}
    local = local_gradients(model, data(rank))
    attach(model, AllReduce(), bucket_mb=SMALL, observer=lambda names, flat: seen.update({names: flat.norm().item()}))
    model(data(rank)).square().mean().backward()
    assert sum(value**2 for value in seen.values()) == pytest.approx(
        sum(v.square().sum().item() for v in local.values())
    )
    assert {name for names in seen for name in names} == local.keys()
    assert_close(gradients(model), _divided(summed(local), 2))


def test_observer_sees_each_buckets_local_gradient(ranks):
    ranks(2, _observe)


def _compiled(rank):
    model = mlp()
    expected = _divided(summed(local_gradients(model, data(rank))), 2)
    attach(model, AllReduce(), bucket_mb=SMALL)
    for layer in model:
        layer.compile(backend="aot_eager")
    for _ in range(2):
        model.zero_grad()
        model(data(rank)).square().mean().backward()
        assert_close(gradients(model), expected)


def test_compiled_blocks(ranks):
    ranks(2, _compiled)


def _compiled_whole(rank):
    model = mlp()
    expected = _divided(summed(local_gradients(model, data(rank))), 2)
    attach(model, AllReduce(), bucket_mb=SMALL)
    model.compile(backend="aot_eager")
    for _ in range(2):
        model.zero_grad()
        model(data(rank)).square().mean().backward()
        assert_close(gradients(model), expected)


def test_a_module_compiled_as_a_whole(ranks):
    ranks(2, _compiled_whole)


class _Checkpointed(nn.Module):
    def __init__(self, layers, reentrant):
        super().__init__()
        self.layers, self.reentrant = layers, reentrant

    def forward(self, inputs):
        for layer in self.layers:
            inputs = checkpoint(layer, inputs, use_reentrant=self.reentrant)
        return {"outputs": inputs}


def _checkpointed(rank, reentrant):
    plain = mlp()
    expected = {f"layers.{name}": value for name, value in summed(local_gradients(plain, data(rank))).items()}
    model, fired = _Checkpointed(plain, reentrant), []
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    model(data(rank).requires_grad_())["outputs"].square().mean().backward()
    assert_close(gradients(model), expected)
    assert sorted(fired) == sorted(expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(ranks, reentrant):
    ranks(2, _checkpointed, reentrant)


def _tied_reentrant(rank):
    plain = mlp()
    plain[3] = plain[0]
    model = _Checkpointed(plain, True)
    reducer = attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    expected = {f"layers.{name}": value for name, value in summed(local_gradients(plain, data(rank))).items()}
    with pytest.raises(BackwardError, match=r"layers\.0\.0\.bias|layers\.0\.0\.weight"):
        model(data(rank).requires_grad_())["outputs"].square().mean().backward()
    model.zero_grad()
    with reducer.no_sync():
        model(data(rank).requires_grad_())["outputs"].square().mean().backward()
    reducer.reduce()
    assert_close(gradients(model), expected)


def test_a_parameter_in_two_reentrant_checkpoints_is_refused_and_reduce_is_the_way_out(ranks):
    ranks(2, _tied_reentrant)


def _two_losses(rank):
    model = mlp()
    expected = _divided(summed(local_gradients(model, data(rank), data(rank, step=1))), 2)
    attach(model, AllReduce(), op="mean", bucket_mb=SMALL)
    for step in range(2):
        model(data(rank, step=step)).square().mean().backward()
    assert_close(gradients(model), expected)


def test_mean_over_two_backwards_adds_up(ranks):
    ranks(2, _two_losses)


def _uncleared(rank):
    model = mlp()
    reducer = attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    model(data(rank)).square().mean().backward()
    with pytest.raises(BackwardError, match="counted once for every rank"):
        model(data(rank)).square().mean().backward()
    with pytest.raises(BackwardError, match="counted once for every rank"), reducer.no_sync():
        model(data(rank)).square().mean().backward()
    for parameter in model.parameters():
        parameter.grad.data.zero_()
    model(data(rank)).square().mean().backward()
    assert_close(gradients(model), summed(local_gradients(model, data(rank))))


def test_sum_onto_reduced_gradients_is_refused(ranks):
    ranks(2, _uncleared)


def _autograd_grad(rank):
    model = mlp()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    inputs = data(rank).requires_grad_()
    model(inputs).square().mean().backward()
    before = gradients(model)
    if rank == 0:  # nothing is sent, so one rank may do it alone
        penalty = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)[0].norm()
        assert penalty.item() > 0
    assert all(torch.equal(value, gradients(model)[name]) for name, value in before.items())


def test_autograd_grad_reduces_nothing(ranks):
    ranks(2, _autograd_grad)


def _penalty(rank):
    model = mlp()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    inputs = data(rank).requires_grad_()
    outputs = model(inputs)
    penalty = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)[0].square().sum()
    (outputs.mean() + penalty).backward()
    alone = copy.deepcopy(model)
    outputs = alone(inputs)
    penalty = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)[0].square().sum()
    (outputs.mean() + penalty).backward()
    assert_close(gradients(model), summed(gradients(alone)))


def test_gradient_penalty(ranks):
    ranks(2, _penalty)


def _refusals(rank):
    model = mlp()
    reducer = attach(model, AllReduce())
    for whole in (model, model[0], nn.Sequential(model)):
        with pytest.raises(AttachError, match="attached already"):
            attach(whole, AllReduce())
    reducer.detach()
    attach(model, AllReduce()).detach()
    with pytest.raises(AttachError, match="nothing to reduce"):
        attach(nn.Linear(2, 2).requires_grad_(False), AllReduce())
    with pytest.raises(AttachError, match="meta"):
        attach(nn.Linear(2, 2, device="meta"), AllReduce())
    with pytest.raises(AttachError, match="bucket_mb is 0"):
        attach(model, AllReduce(), bucket_mb=0)


def test_attaching_twice_and_what_cannot_be_attached(ranks):
    ranks(2, _refusals)


def _toggled(rank):
    model = mlp()
    model[0].requires_grad_(False)
    attach(model, AllReduce())
    model[0].requires_grad_(True)
    with pytest.raises(AttachError, match=r"0\.0\.weight is trainable now and was frozen"):
        model(data(rank)).square().mean().backward()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    with pytest.raises(AttachError, match=r"2\.0\.bias is frozen now and was trainable"):
        model(data(rank)).square().mean().backward()
    model[2].requires_grad_(True)
    model.zero_grad()
    model(data(rank)).square().mean().backward()
    assert_same_bits_everywhere(model)


def test_requires_grad_changed_after_attach_is_named(ranks):
    ranks(2, _toggled)


def _copied(rank):
    model = mlp()
    attach(model, AllReduce())
    twin = copy.deepcopy(model)
    if rank == 0:  # the copy is not attached: one rank may use it alone
        twin(data(rank)).square().mean().backward()
        assert_close(gradients(twin), local_gradients(model, data(rank)))
    attach(twin, AllReduce())


def test_a_copy_of_an_attached_module_is_not_attached(ranks):
    ranks(2, _copied)


def _detached(rank):
    model = mlp()
    reducer = attach(model, AllReduce())
    reducer.detach()
    model(data(rank)).square().mean().backward()
    assert_close(gradients(model), local_gradients(model, data(rank)))


def test_detach_leaves_the_module_as_it_was(ranks):
    ranks(2, _detached)


def _around_forward(rank):
    model = mlp()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)

    def backward():
        model.get_submodule("3")(model[2](model[1](model[0](data(rank))))).square().mean().backward()

    for _ in range(2):
        model.zero_grad()
        backward()
        assert_close(gradients(model), summed(local_gradients(model, data(rank))))
    with pytest.raises(BackwardError, match="counted once for every rank"):
        backward()


def test_a_backward_that_does_not_go_through_the_modules_own_forward(ranks):
    ranks(2, _around_forward)


def _create_graph(rank):
    model = mlp()
    attach(model, AllReduce(), op="sum", bucket_mb=SMALL)
    model(data(rank)).square().mean().backward(create_graph=True)
    assert not any(parameter.grad.requires_grad for parameter in model.parameters())
    assert_close(gradients(model), summed(local_gradients(model, data(rank))))


def test_backward_that_keeps_its_graph(ranks):
    ranks(2, _create_graph)


def _small_modules_are_cut(rank):
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])
    sizes = [bucket.size / 2**20 for bucket in attach(model, AllReduce()).buckets]
    assert sizes == pytest.approx([1, 3, 3, 3, 2], abs=0.01)
    sizes = [bucket.size / 2**20 for bucket in attach(mlp(width=64), AllReduce(), bucket_mb=0.02).buckets]
    assert sizes == pytest.approx([0.03, 0.03], abs=0.01)


def test_there_is_something_to_overlap_with_in_small_modules(ranks):
    ranks(2, _small_modules_are_cut)


class TestOneProcess:
    def test_works_without_a_process_group_and_hooks_no_parameter(self):
        model = mlp()
        reducer = attach(model, AllReduce())
        assert reducer.buckets == ()
        assert not any(each._post_accumulate_grad_hooks for each in model.parameters())
        with reducer.no_sync():
            model(data(0)).square().mean().backward()
        model(data(1)).square().mean().backward()
        reducer.reduce()
        assert_close(gradients(model), local_gradients(model, data(0), data(1)))

    def test_is_attached_once(self):
        model = mlp()
        attach(model, AllReduce())
        with pytest.raises(AttachError, match="attached already"):
            attach(model, AllReduce())

    def test_observer_is_called(self):
        model, seen = mlp(), []
        attach(model, AllReduce(), observer=lambda names, flat: seen.append((names, flat.norm().item())))
        model(data(0)).square().mean().backward()
        local = local_gradients(model, data(0))
        assert seen[0][1] == pytest.approx(torch.cat([v.flatten() for v in local.values()]).norm().item(), rel=1e-5)

    def test_state_is_empty_and_refuses_anything_else(self):
        reducer = attach(mlp(), AllReduce())
        assert reducer.state_dict() == {}
        reducer.load_state_dict({})
        with pytest.raises(RuntimeError, match="residuals"):
            reducer.load_state_dict({"residuals": {"node": {"weight": {"spans": [[0, 1]], "values": torch.ones(1)}}}})
