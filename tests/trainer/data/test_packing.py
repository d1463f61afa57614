"""Documents in rows: each whole, none lost, rows nearly full, and what a sample says of them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.trainer.data.packing import MARKS, PackedDocuments, has_targets, marked, pack, packed
from gradwire.trainer.data.token_file import TokenFile, write_tokens
from gradwire.trainer.losses import IGNORED


@given(st.lists(st.integers(1, 20), max_size=60))
def test_every_document_has_a_place_and_no_row_is_too_long(lengths: list[int]) -> None:
    rows = pack(lengths, 20)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= 20 for row in rows)
    assert len(rows) <= 11 / 9 * -(-sum(lengths) // 20) + 1 or any(length > 10 for length in lengths)


def test_rows_are_nearly_full() -> None:
    lengths = (np.random.default_rng(0).pareto(1.5, 5000) * 40 + 10).clip(max=512).astype(int).tolist()
    rows = pack(lengths, 512)
    assert sum(lengths) / (512 * len(rows)) > 0.99


def test_what_fits_exactly_shares_a_row() -> None:
    assert pack([3, 7, 2, 5, 3], 10) == [[1, 0], [3, 4, 2]]


def a_file(path: Path) -> TokenFile:
    documents = [
        marked([5, 6, 7, 8], [False, False, True, True]),
        marked([9, 10], [True, True]),  # its first token has nothing before it to be learned from
        marked([11, 12, 13, 14, 15, 16], [False] * 5 + [True]),
    ]
    write_tokens(path / "rows.bin", packed(documents, 8, 3), MARKS * 20, "none")
    return TokenFile(path / "rows.bin")


def test_a_sample_tells_targets_and_positions(tmp_path: Path) -> None:
    samples = PackedDocuments(a_file(tmp_path), 8, 0, 2)
    batch = samples.gather(np.array([0, 1]))
    assert batch["input_ids"].tolist() == [[11, 12, 13, 14, 15, 16, 9, 10], [5, 6, 7, 8, 3, 3, 3, 3]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 4, 5, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3]]
    no = IGNORED
    assert batch["labels"].tolist() == [[no, no, no, no, 16, no, 10, no], [no, 7, 8, no, no, no, no, no]]
    assert samples[1]["labels"].tolist() == batch["labels"][1].tolist()
    with pytest.raises(IndexError, match="rows are numbered 0 … 1, found 2 to 2"):
        samples.gather(np.array([2]))


def test_a_document_without_targets_is_told() -> None:
    assert not has_targets(marked([1, 2], [True, False]))
    assert has_targets(marked([1, 2], [False, True]))
