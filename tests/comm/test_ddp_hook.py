import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.comm import AllReduce, CollectiveError, CommError, DeepGradientCompression, PowerSGD, Topology
from gradwire.comm.ddp_hook import ddp_hook
from gradwire.comm.residuals import summed as summed_residuals
from tests.comm.models import assert_close, assert_same_bits_everywhere, data, gradients, local_gradients, mlp, summed

SMALL = 0.005  # MiB a bucket, so that there are several


class Partial(nn.Module):
    """An embedding with sparse gradients and a layer that one rank does not use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 8, sparse=True)
        self.both = nn.Linear(8, 8)
        self.sometimes = nn.Linear(8, 8)

    def forward(self, tokens, detour):
        hidden = self.both(self.table(tokens))
        return self.sometimes(hidden) if detour else hidden


def pair(make, hook, **options):
    """DDP as it is, and DDP with the hook."""
    plain = DistributedDataParallel(make(), bucket_cap_mb=SMALL, **options)
    hooked = DistributedDataParallel(make(), bucket_cap_mb=SMALL, **options)
    hooked.register_comm_hook(hooked, hook)
    return plain, hooked


def _same_bits(rank):
    plain, hooked = pair(mlp, ddp_hook(AllReduce))
    for each in (plain, hooked):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            with each.no_sync():
                each(data(rank, step=step)).square().mean().backward()
            each(data(rank, step=10 + step)).square().mean().backward()
            optimizer.step()
    expected = gradients(plain)
    assert all(torch.equal(value, expected[name]) for name, value in gradients(hooked).items())
    assert all(map(torch.equal, plain.parameters(), hooked.parameters()))


def _sparse_and_unused(rank):
    plain, hooked = pair(Partial, ddp_hook(AllReduce()), find_unused_parameters=True)
    for step in range(3):
        tokens = torch.arange(6) * (rank + 1) + step
        for each in (plain, hooked):
            each.zero_grad()
            each(tokens, detour=rank == 0).square().mean().backward()
        expected = gradients(plain)
        for name, value in gradients(hooked).items():
            assert value.is_sparse == expected[name].is_sparse
            torch.testing.assert_close(value.to_dense(), expected[name].to_dense(), msg=name)
        assert_same_bits_everywhere(hooked)


def _sum_of_three(rank):
    hooked = DistributedDataParallel(mlp(), bucket_cap_mb=SMALL)
    hooked.register_comm_hook(None, ddp_hook(AllReduce(), op="sum"))
    expected = summed(local_gradients(hooked.module, data(rank)))
    hooked(data(rank)).square().mean().backward()
    assert_close(gradients(hooked.module), expected)
    assert_same_bits_everywhere(hooked)


class Broken(AllReduce):
    def private(self, _):
        return self

    def __call__(self, tensor, op="mean", async_op=False):
        class Work:
            def wait(self):
                raise CollectiveError("a peer has died")

        return Work()


def _error_surfaces(rank):
    hooked = DistributedDataParallel(nn.Linear(4, 4))
    hooked.register_comm_hook(hooked, ddp_hook(Broken()))
    with pytest.raises(CollectiveError, match=r"the gradients of .*(weight|bias).* a peer has died"):
        hooked(torch.ones(2, 4)).sum().backward()
    early = Broken()
    early.size, early.topology = 1, Topology(ring=1)  # as if made before the process group
    hooked = DistributedDataParallel(nn.Linear(4, 4))
    hooked.register_comm_hook(hooked, ddp_hook(early))
    with pytest.raises(CommError, match=r"before the process group existed, and there are 2"):
        hooked(torch.ones(2, 4)).sum().backward()


def _coded(rank):
    plain, hooked = pair(mlp, ddp_hook(lambda: AllReduce(codecs={"ring": "int8"})))
    for step in range(3):
        for each in (plain, hooked):
            each.zero_grad()
            each(data(rank, step=step)).square().mean().backward()
        expected, found = (torch.cat([each.flatten() for each in gradients(one).values()]) for one in (plain, hooked))
        assert 0 < (found - expected).norm() < 0.02 * expected.norm()
        assert_same_bits_everywhere(hooked)


def _nothing_is_lost(rank, topology, codec, poison):
    hook = ddp_hook(lambda: AllReduce(topology, codecs={"node": codec}))
    plain, hooked = pair(mlp, hook)
    given, owed = {}, {}
    for step in range(4):
        poisoned = poison and step in (0, 2)
        for each in (plain, hooked):
            each.zero_grad()
            loss = each(data(rank, step=step)).square().mean()
            (loss * float("nan") if poisoned and rank == 1 else loss).backward()
        if poisoned:
            assert any(value.isnan().any() for value in gradients(hooked).values())
            continue
        for sums, model in ((owed, plain), (given, hooked)):
            for name, value in gradients(model).items():
                sums[name] = sums.get(name, 0) + value.double()
        assert_same_bits_everywhere(hooked)
    states = [None] * 4
    torch.distributed.all_gather_object(states, hook._carried.states())
    some = False
    for name, total in given.items():
        rest = sum(
            summed_residuals([state["residuals"]], name.removeprefix("module."), "values", (0, total.numel()))
            for rank_states in states
            for state in rank_states
        )
        some = some or bool(rest.any())
        torch.testing.assert_close(total + rest.view(total.shape), owed[name], rtol=1e-4, atol=1e-5)
    assert some


def _momentum_corrected(rank):
    """With everything sent, momentum has nothing to correct."""
    hook = ddp_hook(lambda: AllReduce(codecs={"ring": DeepGradientCompression(1.0)}))
    plain, hooked = pair(mlp, hook)
    for step in range(3):
        for each in (plain, hooked):
            each.zero_grad()
            each(data(rank, step=step)).square().mean().backward()
        for name, value in gradients(hooked).items():
            torch.testing.assert_close(value, gradients(plain)[name], rtol=0.02, atol=1e-4)
    hook.rescale(0.5)
    hook.settle(kept=True)


@pytest.mark.parametrize("codec", ["int4", "top_k", PowerSGD(1, min_compression=1.1)], ids=str)
@pytest.mark.parametrize("topology", [Topology(node=4), Topology(local=2, node=2)], ids=str)
def test_residuals_follow_the_parameters_to_new_buckets(ranks, topology, codec):
    ranks(4, _nothing_is_lost, topology, codec, False)


def test_updates_with_nan_leave_the_residuals_as_they_were(ranks):
    ranks(4, _nothing_is_lost, Topology(node=4), "int4", True)


def test_momentum_correction_under_ddp(ranks):
    ranks(2, _momentum_corrected)


def test_a_codec_without_feedback(ranks):
    ranks(2, _coded)


def test_two_ranks_get_the_bits_of_plain_ddp(ranks):
    ranks(2, _same_bits)


def test_sparse_gradients_and_unused_parameters_are_those_of_plain_ddp(ranks):
    ranks(2, _sparse_and_unused)


def test_an_error_on_the_worker_thread_is_raised_by_backward_with_the_parameters(ranks):
    ranks(2, _error_surfaces)


def test_the_sum_over_three_ranks(ranks):
    ranks(3, _sum_of_three)
