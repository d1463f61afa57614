import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.comm.errors import CommError
from gradwire.comm.factors import Rows
from gradwire.comm.orthogonal import orthonormalize_
from gradwire.comm.power_sgd import LowRank, PowerSGD

LAYOUT = [Rows("a", 0, 3, 40, 30), Rows("b", 5, 3 + 1200 + 7, 40, 50)]  # 3 and 7 elements are not covered
COUNT = 3 + 1200 + 7 + 2000


def alone(_):
    """The all-reduce of a line of one rank."""


def low_rank(count, layout, rank, seed=0):
    """A flat tensor whose matrices have the given rank."""
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randn(count, generator=generator)
    for rows in layout:
        left, right = (torch.randn(n, rank, generator=generator) for n in (rows.rows, rows.columns))
        rows.matrix(flat).copy_(left @ right.T)
    return flat


def reference(values, layout, q, rank):
    """Algorithm 1 of the paper in float64, with QR."""
    result = values.double().clone()
    for rows in layout:
        matrix = rows.matrix(result)
        p, _ = torch.linalg.qr(matrix @ q[rows.key].double().T)
        matrix.copy_(p @ (matrix.T @ p).T)
    return result


@given(rank=st.integers(1, 4), seed=st.integers(0, 99), scale=st.sampled_from([1e-30, 1.0, 1e15]))
@settings(max_examples=20)
def test_a_matrix_of_no_higher_rank_is_reproduced(rank, seed, scale):
    flat = low_rank(COUNT, LAYOUT, max(rank - seed % 2, 1), seed) * scale
    error, input_ = torch.full_like(flat, 7.0), flat.clone()
    state = LowRank(PowerSGD(4, min_compression=1))
    state.reduce(flat, LAYOUT, alone, error)
    torch.testing.assert_close(flat, input_, rtol=1e-4, atol=2e-4 * scale)
    assert error.abs().max() < 2e-4 * scale


def test_first_and_warm_steps_equal_the_float64_reference():
    config, values = PowerSGD(3, min_compression=1), torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    state, errors = LowRank(config), []
    for _ in range(30):
        q = {rows.key: state._start(rows, torch.device("cpu")) for rows in LAYOUT}
        flat = values.clone()
        state.reduce(flat, LAYOUT, alone, None)
        state.settle(kept=True)
        torch.testing.assert_close(flat.double(), reference(values, LAYOUT, q, 3), rtol=1e-4, atol=1e-4)
        errors.append((flat - values).norm())
    best = values.double().clone()
    for rows in LAYOUT:
        left, weights, right = torch.linalg.svd(rows.matrix(best), full_matrices=False)
        rows.matrix(best).copy_(left[:, :3] * weights[:3] @ right[:3])
    assert errors[-1] < errors[0]
    assert errors[-1] < 1.01 * (best - values).norm()  # the power iteration found the best rank-3 approximation


def test_decoded_and_residual_make_the_input_and_uncovered_elements_are_exact():
    values = torch.randn(COUNT, generator=torch.Generator().manual_seed(2))
    flat, error = values.clone(), torch.empty_like(values)
    LowRank(PowerSGD(2)).reduce(flat, LAYOUT, alone, error)
    torch.testing.assert_close(flat + error, values, rtol=0, atol=2e-6)
    for start, stop in [(0, 3), (1203, 1210)]:
        assert torch.equal(flat[start:stop], values[start:stop])
        assert not error[start:stop].any()


def test_all_of_a_constant_gradient_arrives_in_time():
    values, total = torch.randn(2000, generator=torch.Generator().manual_seed(3)), torch.zeros(2000)
    state, residual, layout = LowRank(PowerSGD(2)), torch.zeros(2000), [Rows("w", 0, 0, 40, 50)]
    for _ in range(60):
        flat = values + residual
        state.reduce(flat, layout, alone, residual)
        state.settle(kept=True)
        total += flat
    torch.testing.assert_close(total + residual, 60 * values, rtol=1e-4, atol=1e-3)
    assert (total / 60 - values).norm() < 0.3 * values.norm()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_element_spoils_its_whole_matrix_and_nothing_after_the_step(bad):
    state, values = LowRank(PowerSGD(2)), low_rank(COUNT, LAYOUT, 5)
    state.reduce(values.clone(), LAYOUT, alone, None)
    state.settle(kept=True)
    before = state.state_dict()
    flat = values.clone()
    flat[100] = bad
    state.reduce(flat, LAYOUT, alone, torch.empty_like(flat))
    state.settle(kept=False)
    assert LAYOUT[0].matrix(flat).isnan().all()
    assert flat[:3].isfinite().all() and flat[1203:].isfinite().all()
    after = state.state_dict()
    assert after["steps"] == before["steps"] == 1
    assert all(torch.equal(after["factors"][key], value) for key, value in before["factors"].items())


def test_a_gradient_of_zeros_stays_zero_and_the_next_one_is_seen():
    state, values = LowRank(PowerSGD(2)), low_rank(COUNT, LAYOUT, 2)
    zeros, again = torch.zeros(COUNT), values.clone()
    state.reduce(zeros, LAYOUT, alone, None)
    state.settle(kept=True)
    assert not zeros.any()
    state.reduce(again, LAYOUT, alone, None)
    torch.testing.assert_close(again, values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("warm_start", [True, False])
def test_a_loaded_state_continues_in_the_same_bits(warm_start):
    config = PowerSGD(2, warm_start=warm_start)
    steps = [torch.randn(COUNT, generator=torch.Generator().manual_seed(step)) for step in range(4)]
    through, resumed, saved = LowRank(config), LowRank(config), None
    for index, values in enumerate(steps):
        flat = values.clone()
        through.reduce(flat, LAYOUT, alone, None)
        through.settle(kept=True)
        if index == 1:
            saved = through.state_dict()
    assert sorted(saved["factors"]) == (["a[0:40]", "b[5:45]"] if warm_start else [])
    resumed.load_state_dict(saved)
    for values in steps[2:]:
        again = values.clone()
        resumed.reduce(again, LAYOUT, alone, None)
        resumed.settle(kept=True)
    assert torch.equal(again, flat)


def test_bytes_are_those_of_two_all_reduces():
    config, sent = PowerSGD(2), []
    LowRank(config).reduce(torch.randn(COUNT), LAYOUT, lambda buffer: sent.append(buffer.nbytes), None)
    assert tuple(sent) == config.nbytes(COUNT, LAYOUT) == (4 * (10 + 2 * 80), 4 * 2 * 80)
    sent.clear()
    thin = [Rows("thin", 0, 0, 4, 20)]
    LowRank(config).reduce(torch.randn(COUNT), thin, lambda buffer: sent.append(buffer.nbytes), None)
    assert sent == [4 * COUNT] == [sum(config.nbytes(COUNT, thin))]


def test_dependent_columns_become_zero_and_the_others_orthonormal():
    columns = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(4)) * 1e-25
    columns[0, :, 2] = columns[0, :, 0] - 3 * columns[0, :, 1]
    orthonormalize_(columns)
    expected = torch.eye(4).repeat(2, 1, 1)
    expected[0, 2, 2] = 0
    torch.testing.assert_close(columns.mT @ columns, expected, rtol=0, atol=1e-6)


def test_what_cannot_be_is_refused():
    with pytest.raises(CommError, match="rank is 0"):
        PowerSGD(0)
    with pytest.raises(CommError, match="min_compression"):
        PowerSGD(2, min_compression=0.5)
    with pytest.raises(CommError, match="float64"):
        LowRank(PowerSGD()).reduce(torch.zeros(9).double(), [], alone, None)
    with pytest.raises(CommError, match=r"a\[0:40\] lies at 3:1203; expected between 0 and 1000"):
        LowRank(PowerSGD()).reduce(torch.zeros(1000), LAYOUT[:1], alone, None)


def _two_ranks(rank):
    state, residual = LowRank(PowerSGD(2)), torch.zeros(COUNT)
    for step in range(3):
        own = torch.randn(COUNT, generator=torch.Generator().manual_seed(10 * step + rank)) / 2
        flat = own + residual
        expected = flat.clone()
        state.reduce(flat, LAYOUT, dist.all_reduce, residual)
        state.settle(kept=step != 1)
        first, left = flat.clone(), residual.clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, flat)  # replicas hold the same bits
        dist.all_reduce(expected)
        dist.all_reduce(left)
        torch.testing.assert_close(flat + left, expected, rtol=0, atol=5e-6)  # nothing is lost
    flat = torch.ones(COUNT)
    if rank == 1:
        flat[5] = float("inf")
    state.reduce(flat, LAYOUT, dist.all_reduce, None)
    assert LAYOUT[0].matrix(flat).isnan().all() and not LAYOUT[1].matrix(flat).isnan().any()


def test_two_ranks_hold_the_same_bits_and_lose_nothing(ranks):
    ranks(2, _two_ranks)
