"""Passes on a CPU stay below half of what is free."""

import pytest
import torch

from gradwire.trainer.host_memory import MemoryGuard, available, resident_peak
from gradwire.trainer.micro_batch import most_that_fit
from tests.ranks import run_ranks

MIB = 2**20


def test_a_pass_beyond_the_budget_is_refused_before_it_allocates() -> None:
    tried: list[int] = []
    held = iter([1000, *(value for size in (1, 2, 4, 8) for value in (0, 1000 + 50 * size))])
    guard = MemoryGuard(budget=500, peak=lambda: next(held))
    attempt = guard.guarded(tried.append)
    for size in (1, 2, 4, 8):
        attempt(size)
    assert guard.predicted(10) == 500 and guard.predicted(16) == 800
    with pytest.raises(torch.OutOfMemoryError, match="16 samples"):
        attempt(16)
    assert tried == [1, 2, 4, 8]


def _search(rank: int) -> None:
    sizes: list[int] = []

    def attempt(size: int) -> None:
        sizes.append(size)
        torch.ones(size, 8 * MIB // 4).sum()  # 8 MiB a sample

    guard = MemoryGuard(budget=200 * MIB)
    found = most_that_fit(1000, guard.guarded(attempt), lambda answer: answer)
    assert 16 <= found <= 26 and max(sizes) <= 26


def test_the_search_ends_where_real_memory_would() -> None:
    run_ranks(1, _search)  # in a process of its own: this one may hold free memory of other tests


def test_the_peak_is_that_since_the_last_call() -> None:
    resident_peak()
    before = resident_peak()
    torch.ones(64 * MIB // 4).sum()
    peak = resident_peak()
    assert 48 * MIB < peak - before < 160 * MIB
    assert resident_peak() < peak


def test_a_container_s_limit_counts(tmp_path, monkeypatch) -> None:
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr("gradwire.trainer.host_memory._CGROUPS", ((limit, used),))
    free = available()
    limit.write_text("30000000\n"), used.write_text("10000000\n")
    assert available() == 20_000_000
    limit.write_text("max\n")
    assert available() > 0.5 * free
