import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gradwire.comm import AllReduce, AttachError, ReplicaMismatch, check_replicas
from gradwire.comm.fsdp import fsdp_hooks, local_shards


@functools.cache
def two_by_two():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.register_buffer("scale", torch.rand(1))

    def forward(self, hidden):
        normed, mask = self.norm(hidden), nn.Transformer.generate_square_subsequent_mask(hidden.shape[1])
        hidden = hidden + self.attention(normed, normed, normed, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return hidden + self.scale.to(hidden.dtype) * self.feed_forward(hidden)


class Decoder(nn.Module):
    """Odd sizes, so that shards are unequal and padded."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(51, 18)
        self.blocks = nn.ModuleList(Block(18) for _ in range(2))
        self.head = nn.Linear(18, 51)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def loss(model, rank, step=0):
    tokens = torch.randint(51, (3, 9), generator=torch.Generator().manual_seed(10 * step + rank))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def shard(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _like_hybrid_sharding_and_ddp(rank):
    mesh = two_by_two()
    replicas = mesh.get_group("replicate")
    alone, native = Decoder(), shard(Decoder(), mesh)
    ours = shard(Decoder(seed=mesh.get_local_rank("replicate")), mesh["shard"])  # replicas begin apart
    fsdp_hooks(ours, AllReduce(group=replicas))
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (alone, native, ours)]
    for step in range(3):
        for model in (alone, native, ours):
            model.zero_grad()
            loss(model, rank, step).backward()
        for parameter in alone.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 4
        for (name, one), two, three in zip(
            alone.named_parameters(), native.parameters(), ours.parameters(), strict=True
        ):
            torch.testing.assert_close(three.grad.full_tensor(), one.grad, rtol=1e-4, atol=1e-6, msg=name)
            torch.testing.assert_close(three.grad.full_tensor(), two.grad.full_tensor(), rtol=1e-5, atol=1e-7, msg=name)
        for optimizer in optimizers:
            optimizer.step()
        check_replicas(local_shards(ours), replicas)
    with torch.no_grad():  # the check sees a bit
        next(ours.parameters()).to_local().view(-1)[0] += rank // 2
    with pytest.raises(ReplicaMismatch, match="embedding/weight, shard"):
        check_replicas(local_shards(ours), replicas)


def _accumulated_and_summed(rank):
    mesh = two_by_two()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    alone, ours = Decoder(), shard(Decoder(), mesh["shard"], mp_policy=policy)
    for module in (ours, *ours.blocks):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    fsdp_hooks(ours, AllReduce(group=mesh.get_group("replicate")), op="sum")
    for step in range(3):
        ours.set_requires_gradient_sync(step == 2)
        (loss(ours, rank, step) / 12).backward()
        (loss(alone, rank, step) / 12).backward()
    for (name, one), two in zip(alone.named_parameters(), ours.parameters(), strict=True):
        dist.all_reduce(one.grad)
        found = two.grad.full_tensor()
        assert (found - one.grad).norm() < 0.03 * one.grad.norm() + 1e-6, name  # bfloat16 throughout
    check_replicas(local_shards(ours), mesh.get_group("replicate"))


def _refused(_):
    mesh = two_by_two()
    replicas = AllReduce(group=mesh.get_group("replicate"))
    with pytest.raises(AttachError, match="not sharded: call"):
        fsdp_hooks(Decoder(), replicas)
    with pytest.raises(AttachError, match=r"embedding.weight lies on a mesh of 2 dimensions"):
        fsdp_hooks(shard(Decoder(), mesh), replicas)
    with torch.device("meta"):
        empty = Decoder()
    with pytest.raises(AttachError, match="meta device"):
        fsdp_hooks(shard(empty, mesh["shard"]), replicas)
    with pytest.raises(ReplicaMismatch):  # the other way round: these ranks hold different shards
        fsdp_hooks(shard(Decoder(), mesh["shard"]), AllReduce(group=mesh.get_group("shard")))
    coded = AllReduce(group=mesh.get_group("replicate"), codecs={"ring": "int4"})
    with pytest.raises(AttachError, match=r"int4 on the axis ring has error feedback"):
        fsdp_hooks(shard(Decoder(), mesh["shard"]), coded)
    left_out = Decoder()
    fully_shard(left_out, mesh=mesh["shard"], ignored_params={left_out.head.bias})
    with pytest.raises(AttachError, match=r"head.bias is trained and not sharded"):
        fsdp_hooks(left_out, replicas)


def _coded(rank):
    mesh = two_by_two()
    native, ours = shard(Decoder(), mesh), shard(Decoder(), mesh["shard"])
    fsdp_hooks(ours, AllReduce(group=mesh.get_group("replicate"), codecs={"ring": "int8"}))
    for model in (native, ours):
        loss(model, rank).backward()
    expected, found = (
        torch.cat([each.grad.full_tensor().flatten() for each in model.parameters()]) for model in (native, ours)
    )
    assert 0 < (found - expected).norm() < 0.02 * expected.norm()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.sub_(parameter.grad)
    check_replicas(local_shards(ours), mesh.get_group("replicate"))


def test_replicas_stay_equal_under_a_codec(own_ranks):
    own_ranks(4, _coded)


def test_gradients_are_those_of_hybrid_sharding_and_replicas_stay_equal(own_ranks):
    own_ranks(4, _like_hybrid_sharding_and_ddp)


def test_accumulation_and_sums_in_mixed_precision(own_ranks):
    own_ranks(4, _accumulated_and_summed)


def test_models_that_cannot_be_hooked_are_refused(own_ranks):
    own_ranks(4, _refused)
