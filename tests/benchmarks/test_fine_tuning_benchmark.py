"""An adapter's run sends and stores little, and its export computes the same."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.fine_tuning import measure


@pytest.mark.slow
def test_an_adapter_sends_two_percent_and_stores_five_and_exports_to_the_same_logits(tmp_path: Path) -> None:
    found: dict[str, Any] = measure(tmp_path, updates=4, rank=4)
    assert found["whole"]["parameters"] > 10_000_000
    assert found["lora"]["trained"] < 0.02 * found["lora"]["parameters"]
    assert found["whole"]["wire"] > 4 * 10_000_000  # all gradients cross
    assert found["whole"]["snapshot"] > 8 * 10_000_000
    assert 0 < found["ratio"]["wire"] <= 0.02
    assert 0 < found["ratio"]["snapshot"] <= 0.05
    assert 0 < found["ratio"]["journal"] <= 0.05
    assert found["largest_difference_of_logits"] < 1e-5
