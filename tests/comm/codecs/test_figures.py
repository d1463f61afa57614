"""How exact codecs are, how small, and that chance is counted."""

import pytest
import torch
from torch import Tensor

from gradwire.comm.codecs import Bf16, Codec, Fp8, Fp16, Int4, Int8, RandomK, Sign, TopK
from gradwire.comm.errors import CodecError

COUNT = 1 << 18


def gaussian(seed: int = 0, count: int = COUNT) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def once(codec: Codec, values: Tensor, seed: int = 0) -> Tensor:
    payload, out = torch.empty(codec.nbytes(values.numel()), dtype=torch.uint8), torch.empty_like(values)
    codec.encode(values, payload, seed=seed)
    codec.decode(payload, out)
    return out


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("codec", "one", "two"),
    [
        (Fp16(), 0.00021, 0.00031),
        (Bf16(), 0.0017, 0.0025),
        (Fp8(), 0.027, 0.038),
        (Fp8("e5m2"), 0.053, 0.076),
        (Int8(), 0.0070, 0.0099),
        (Int4(), 0.112, 0.16),
        (Int4(block=256), 0.122, 0.175),
        (Int4(hadamard=True), 0.112, 0.16),
        (Sign(), 0.604, 0.86),
    ],
    ids=repr,
)
def test_gaussian_values_come_out_within_the_known_error(codec: Codec, one: float, two: float) -> None:
    ranks = [gaussian(seed) for seed in range(4)]
    assert one / 1.05 < off(once(codec, ranks[0]), ranks[0]) < one
    summed = torch.stack([once(codec, values) for values in ranks]).sum(0)
    assert off(once(codec, summed), torch.stack(ranks).sum(0)) < two


@pytest.mark.parametrize(
    ("codec", "saved"),
    [(Fp16(), 0.5), (Bf16(), 0.5), (Fp8(), 0.745), (Int8(), 0.745), (Int4(), 0.87), (Sign(), 0.968), (TopK(), 0.989),
     (RandomK(), 0.989)],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("count", [COUNT, 1_000_003])
def test_wire_bytes(codec: Codec, saved: float, count: int) -> None:
    assert 1 - codec.nbytes(count) / (4 * count) > saved - 1e-4


@pytest.mark.parametrize("codec", [Int8(rounding="stochastic"), Int4(rounding="stochastic")], ids=repr)
def test_stochastic_rounding_is_unbiased(codec: Codec) -> None:
    values, rounds = gaussian(count=4096), 400
    decoded = torch.stack([once(codec, values, seed) for seed in range(rounds)]).double()
    moved, variance = decoded.mean(0) - values, decoded.var(0) / rounds
    step = float((decoded.amax(0) - decoded.amin(0)).max())
    assert 0.9 < float((moved**2).sum() / variance.sum()) < 1.1
    assert abs(float(moved.sum())) < 4 * float(variance.sum()) ** 0.5
    assert abs(float((moved * values).sum())) < 4 * float((variance * values**2).sum()) ** 0.5  # no shrinking
    assert float(moved.abs().max()) < 5.5 * step / 2 / rounds**0.5


def test_stochastic_rounding_of_positions_and_seeds_is_independent() -> None:
    values = torch.full((1 << 16,), 0.5)
    values[::256] = 127  # the scale is about one, so that the others round up half of the time
    first, second = (once(Int8(rounding="stochastic"), values, seed) > 0.7 for seed in (1, 2))
    ups = torch.stack([first, second]).float().view(2, 256, 256)[:, :, 1:]
    correlations = torch.corrcoef(torch.stack([ups[0, :, :-1].ravel(), ups[0, :, 1:].ravel(), ups[1, :, 1:].ravel()]))
    assert (correlations - torch.eye(3)).abs().max() < 0.02
    assert abs(float(ups.mean()) - 0.5) < 0.02


def test_hadamard_spreads_outliers() -> None:
    values = gaussian()
    values[::129] *= 10
    assert off(once(Int4(), values), values) > 0.25
    assert off(once(Int4(hadamard=True), values), values) < 0.12


@pytest.mark.parametrize("count", [2000, 70_000, 300_000])
def test_sampled_threshold_sends_what_the_exact_one_sends(count: int) -> None:
    values = gaussian(count=count)
    assert torch.equal(once(TopK(), values, seed=5), once(TopK(threshold="exact"), values))


def test_top_k_sends_the_largest() -> None:
    values = gaussian(count=100_000)
    out = once(TopK(0.01), values)
    largest = values.abs().topk(1000).indices
    assert torch.equal(out.nonzero()[:, 0], largest.sort().values)
    assert torch.equal(out[largest], values[largest].bfloat16().float())


@pytest.mark.parametrize("threshold", ["exact", "sampled"])
def test_top_k_of_alike_and_of_few_values_fits(threshold: str) -> None:
    codec = TopK(0.01, threshold)  # type: ignore[arg-type]
    assert int((once(codec, torch.ones(200_000)) != 0).sum()) == 2000
    few = torch.zeros(200_000)
    few[[3, 65_536, 199_999]] = torch.tensor([1.0, -2.0, 3.0])
    assert torch.equal(once(codec, few), few)


def test_top_k_whose_sample_misleads_sends_less() -> None:
    values = torch.full((1 << 18,), 1e-3)
    values[0 :: (1 << 18) // 16_384 | 1] = 1.0  # what seed 0 samples
    payload, error = torch.empty(TopK(0.2).nbytes(1 << 18), dtype=torch.uint8), torch.empty(1 << 18)
    codec = TopK(0.2)
    codec.encode(values, payload, seed=0, error=error)
    positions = codec.positions(payload, 1 << 18)
    assert (values[positions] == 1).all()
    assert torch.equal(error == 0, values == 1)


def test_random_k_takes_the_same_positions_on_every_rank_so_sums_stay_sparse() -> None:
    codec = RandomK(0.05)
    ranks = [gaussian(seed, 10_007) for seed in range(3)]
    summed = torch.stack([once(codec, values, seed=9) for values in ranks]).sum(0)
    exact = torch.stack(ranks).sum(0)
    places = summed.nonzero()[:, 0]
    assert places.numel() == 501
    assert torch.equal(summed[places], exact[places])
    assert torch.equal(once(codec, summed, seed=9), summed)
    assert not torch.equal(once(codec, exact, seed=10) != 0, summed != 0)


def test_random_k_takes_every_position_alike() -> None:
    codec, values = RandomK(0.1), torch.ones(1000)
    counts = torch.stack([once(codec, values, seed) for seed in range(500)]).sum(0)
    assert int(counts.sum()) == 50_000
    assert (counts - 50).abs().max() < 5.5 * 45**0.5


@pytest.mark.parametrize("byte", [0, 2])
def test_sparse_bytes_that_nobody_wrote_are_refused(byte: int) -> None:
    codec, values = TopK(0.1), gaussian(count=1000)
    payload = torch.empty(codec.nbytes(1000), dtype=torch.uint8)
    codec.encode(values, payload)
    payload[byte] += 1
    with pytest.raises(CodecError, match="holds 100 values"):
        codec.decode(payload, torch.empty(1000))
    codec.encode(values, payload)
    payload[5] = 0x7F
    with pytest.raises(CodecError, match="positions outside"):
        codec.decode(payload, torch.empty(1000))


def test_wrong_configurations_are_refused() -> None:
    for make in (
        lambda: Int8(block=12),
        lambda: Int4(block=0),
        lambda: Sign(block=1 << 20),
        lambda: Int8(rounding="up"),  # type: ignore[arg-type]
        lambda: Fp8("e8m0"),  # type: ignore[arg-type]
        lambda: TopK(0),
        lambda: TopK(threshold="guessed"),  # type: ignore[arg-type]
        lambda: RandomK(1.5),
    ):
        with pytest.raises(CodecError, match="found"):
            make()


def test_a_single_value_in_a_block_of_its_own_keeps_its_size():
    codec = Sign()
    values, decoded = torch.tensor([3.0]), torch.empty(1)
    payload = torch.empty(codec.nbytes(1), dtype=torch.uint8)
    codec.encode(values, payload)
    codec.decode(payload, decoded)
    assert decoded.item() == pytest.approx(3.0, rel=0.01)
