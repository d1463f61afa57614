import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from gradwire.comm import AllReduce
from gradwire.schedulers.noise_scale import NoiseScale, Norms, total
from gradwire.trainer.errors import NoiseError
from gradwire.trainer.noise import NoiseMeter, meter_for
from gradwire.trainer.norm_layers import NormLayerMeter, norm_layers
from gradwire.trainer.strategies import DataParallel, Single, Strategy
from gradwire.trainer.sync_batchnorm import SyncBatchNorm
from tests.trainer.noisy import (
    CPU,
    Pass,
    Planted,
    decoder,
    ids,
    measured,
    own_norm,
    planted_passes,
    text_loss,
    text_norms,
    text_passes,
)


def check_planted(strategy: Strategy, mine: Sequence[int], batch: int, updates: int = 60) -> None:
    planted = Planted()
    model = strategy.prepare(planted)
    meter = NoiseMeter(planted.groups())
    generator = torch.Generator().manual_seed(strategy.rank)
    scales = {name: NoiseScale(decay=0.98) for name in planted.noise_scales()}
    for _ in range(updates):
        norms = measured(strategy, model, meter, planted_passes(model, planted, mine, generator), batch)
        for name, each in {**norms, "all": total(norms.values())}.items():
            scales[name].update(each)
    for name, expected in planted.noise_scales().items():
        assert scales[name].value == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize("sizes", [[8] * 4, [2] * 16, [1, 7, 16, 3, 5], [31, 1]])
def test_planted_noise_scale_is_found_within_5_percent(sizes: list[int]) -> None:
    check_planted(Single(CPU), sizes, sum(sizes))


def _planted_on_two_ranks(rank: int) -> None:
    shares = [[5, 9, 2], [3, 1, 1]]
    check_planted(DataParallel(AllReduce(), CPU), shares[rank], 21)
    check_planted(DataParallel(AllReduce(), CPU), [8], 16)  # one micro-batch on each rank
    check_uneven_by_hand(rank)


def test_planted_noise_scale_and_exact_norms_are_found_over_two_ranks(ranks: Callable[..., None]) -> None:
    ranks(2, _planted_on_two_ranks)


def check_uneven_by_hand(rank: int) -> None:
    """Two ranks with unequal micro-batches report what autograd gives for each micro-batch alone."""
    strategy = DataParallel(AllReduce(), CPU)
    model = Planted(3).double()
    sizes = [[4, 1], [2, 6]]
    draws = [[model.draw(size, torch.Generator().manual_seed(size)).double() for size in each] for each in sizes]
    prepared = strategy.prepare(model)
    passes: list[Pass] = [(lambda x=x: prepared(x).sum(), len(x)) for x in draws[rank]]  # type: ignore[misc]
    norms = measured(strategy, prepared, NoiseMeter(model.groups()), passes, 13)
    means = [(len(x), x.mean(0)) for each in draws for x in each]
    whole = torch.cat([x for each in draws for x in each]).mean(0)
    for name, part in {"first": slice(0, 3), "second": slice(3, 6)}.items():
        small = sum(size / 13 * float(mean[part].square().sum()) for size, mean in means)
        assert norms[name].small == pytest.approx(small, rel=1e-12)
        assert norms[name].big == pytest.approx(float(whole[part].square().sum()), rel=1e-12)
        assert (norms[name].small_size, norms[name].big_size) == (pytest.approx(13 / 4), 13)


def test_groups_add_up_to_the_whole() -> None:
    model = decoder()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    parts = text_norms(model, NoiseMeter({"matrices": matrices, "vectors": vectors}), [3, 5])
    whole = text_norms(model, NoiseMeter({"all": list(model.parameters())}), [3, 5])["all"]
    assert total(parts.values()).small == pytest.approx(whole.small, rel=1e-6)
    assert total(parts.values()).big == pytest.approx(whole.big, rel=1e-6)
    assert min(parts["matrices"].small, parts["vectors"].small) > 0


@pytest.mark.parametrize("tied", [True, False])
def test_shared_parameters_count_once(tied: bool) -> None:
    model = decoder(tied=tied)
    everything = [*model.parameters(), model.embedding.weight, model.output.weight]
    meter = NoiseMeter({"all": everything, "again": everything[:2]})
    norms = text_norms(model, meter, [3, 5])
    parts = ids(8).split([3, 5])
    own = [own_norm(model, list(model.parameters()), part) for part in parts]
    assert norms["all"].small == pytest.approx((3 * own[0] + 5 * own[1]) / 8, rel=1e-5)
    assert norms["all"].big == pytest.approx(own_norm(model, list(model.parameters()), ids(8)), rel=1e-5)
    assert norms["again"] == Norms(0.0, 0.0, 4, 8)


def test_frozen_and_unused_parameters_count_nothing() -> None:
    model = decoder()
    model.blocks[0].requires_grad_(False)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    norms = text_norms(model, NoiseMeter({"all": list(model.parameters())}), [4, 4])
    trained = [p for p in model.parameters() if p.requires_grad]
    own = [own_norm(model, trained, part) for part in ids(8).split([4, 4])]
    assert norms["all"].small == pytest.approx(sum(own) / 2, rel=1e-5)


def test_sparse_gradients_count_each_row_once() -> None:
    def norms(sparse: bool) -> Norms:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 1))
        words = [torch.tensor([[1, 1, 2]]), torch.tensor([[4, 4, 4], [0, 1, 0]])]
        passes: list[Pass] = [(lambda x=x: model(x).square().sum(), x.numel()) for x in words]  # type: ignore[misc]
        return measured(Single(CPU), model, NoiseMeter({"all": list(model.parameters())}), passes, 3)["all"]

    assert norms(sparse=True).small == pytest.approx(norms(sparse=False).small, rel=1e-6)
    assert norms(sparse=True).big == pytest.approx(norms(sparse=False).big, rel=1e-6)


@pytest.mark.parametrize("kind", [NoiseMeter, NormLayerMeter])
def test_the_loss_scale_is_divided_out(kind: type) -> None:
    model = decoder()
    everything = {"norm_layers": [p for layer in norm_layers(model) for p in layer.parameters()]}
    meter = kind(everything) if kind is NoiseMeter else kind(model)
    sizes = [3, 5]
    plain = text_norms(model, meter, sizes)["norm_layers"]
    model.zero_grad()
    for loss, targets in text_passes(model, sizes):
        with meter.micro_batch(targets):
            (loss() / 64 * 1024).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad /= 1024
    scaled = meter.norms(meter.local(), meter.big(), 8, 64, scale=1024.0)["norm_layers"]
    assert (scaled.small, scaled.big) == (pytest.approx(plain.small, rel=1e-5), pytest.approx(plain.big, rel=1e-5))


def test_a_single_micro_batch_tells_nothing() -> None:
    model = Planted()
    meter = NoiseMeter(model.groups())
    generator = torch.Generator().manual_seed(0)
    assert measured(Single(CPU), model, meter, planted_passes(model, model, [8], generator), 8) == {}
    assert meter.norms(meter.local(), {}, 8, 8) == {}


def test_a_micro_batch_without_targets_changes_nothing() -> None:
    model = decoder()
    meter = NoiseMeter({"all": list(model.parameters())})
    empty: Pass = (lambda: text_loss(model, ids(1)) * 0, 0)
    passes = text_passes(model, [3, 5])
    with_empty = measured(Single(CPU), model, meter, [passes[0], empty, passes[1]], 8)
    assert with_empty == measured(Single(CPU), model, meter, passes, 8)


def test_some_of_the_micro_batches_suffice() -> None:
    model = Planted(3)
    meter = NoiseMeter(model.groups())
    x_BD = model.draw(10, torch.Generator().manual_seed(0))
    (model(x_BD[4:]).sum() / 10).backward()
    with meter.micro_batch(4):
        (model(x_BD[:4]).sum() / 10).backward()
    norms = meter.norms(meter.local(), meter.big(), 10, 10)["first"]
    assert norms.small == pytest.approx(float(x_BD[:4, :3].mean(0).square().sum()), rel=1e-5)
    assert (norms.small_size, norms.big_size) == (4, 10)


@pytest.mark.parametrize("kind", [NoiseMeter, NormLayerMeter])
def test_gradients_keep_their_bits_while_a_meter_is_open(kind: type) -> None:
    check_bits(Single(CPU), kind)


def _bits_are_kept(rank: int) -> None:
    for kind in (NoiseMeter, NormLayerMeter):
        check_bits(DataParallel(AllReduce(), CPU), kind)


def test_reduced_gradients_keep_their_bits_while_a_meter_is_open(ranks: Callable[..., None]) -> None:
    ranks(2, _bits_are_kept)


def check_bits(strategy: Strategy, kind: type) -> None:
    def gradients(metered: bool) -> list[Tensor]:
        model = strategy.prepare(decoder())
        meter = kind({"all": list(model.parameters())}) if kind is NoiseMeter else kind(model)
        for index, (loss, targets) in enumerate(text_passes(model, [3, 5])):
            block = meter.micro_batch(targets) if metered else nullcontext()
            with strategy.accumulate() if index == 0 else nullcontext(), block:
                (loss() / 64).backward()  # type: ignore[no-untyped-call]
        return [p.grad for p in model.parameters() if p.grad is not None]

    for with_meter, without in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(with_meter, without)


@pytest.mark.parametrize("kind", [NoiseMeter, NormLayerMeter])
def test_a_failed_pass_leaves_no_hook_and_no_trace(kind: type) -> None:
    model = decoder()
    meter = kind({"all": list(model.parameters())}) if kind is NoiseMeter else kind(model)
    with pytest.raises(ZeroDivisionError), meter.micro_batch(8):
        text_loss(model, ids(1)).backward()  # type: ignore[no-untyped-call]
        raise ZeroDivisionError
    assert meter.local().tolist() == [0.0] * 4
    assert all(not parameter._backward_hooks for parameter in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())


def test_two_gradients_in_one_micro_batch_are_refused() -> None:
    model = Planted(3)
    meter = NoiseMeter(model.groups())
    generator = torch.Generator().manual_seed(0)
    with meter.micro_batch(4):
        for _ in range(2):
            model(model.draw(2, generator)).sum().backward()
    summed = meter.local()
    with pytest.raises(NoiseError, match="more than one gradient in a micro-batch"):
        meter.norms(summed, meter.big(), 8, 8)


def test_an_overflow_is_skipped_by_the_noise_scale() -> None:
    model = Planted(3)
    meter = NoiseMeter(model.groups())
    x_BD = torch.full((2, 6), math.inf)
    passes: list[Pass] = [(lambda: model(x_BD).sum(), 2), (lambda: model(x_BD[:1] * 0).sum(), 1)]
    norms = measured(Single(CPU), model, meter, passes, 3)
    scale = NoiseScale()
    scale.update(norms["first"])
    assert (scale.skipped, scale.measurements) == (1, 0)


def test_groups_without_parameters_are_refused() -> None:
    with pytest.raises(NoiseError, match="the groups hold none"):
        NoiseMeter({"all": []})


def test_compiled_blocks_are_measured_without_compiling_again() -> None:
    torch.compiler.reset()  # graphs of other tests count against the same limit
    graphs = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    model = decoder()
    plain = text_norms(model, NoiseMeter({"all": list(model.parameters())}), [4, 4])
    for block in model.blocks:
        block.compile(backend=backend)
    text_loss(model, ids(4)).backward()  # type: ignore[no-untyped-call]
    before = graphs
    norms = text_norms(model, NoiseMeter({"all": list(model.parameters())}), [4, 4])
    assert norms["all"].small == pytest.approx(plain["all"].small, rel=1e-5)
    assert graphs == before > 0


def test_statistics_over_all_ranks_leave_no_gradient_of_a_rank_s_own_samples() -> None:
    model = nn.Sequential(nn.Linear(2, 2), SyncBatchNorm(2))
    choice = meter_for(model, {"all": list(model.parameters())}, 2, 2)
    assert choice.meter is None and "sync_batchnorm=false" in choice.reason
    assert meter_for(model, {"all": list(model.parameters())}, 1, 2).meter is not None
