import tracemalloc

import pytest
import torch

from gradwire.inference import (
    Caching,
    InferenceError,
    Int8,
    Layout,
    Sampling,
    UnsuitedModelError,
    Window,
    stream_tokens,
)
from tests.inference.models import decoder, logits_by_step, prompts, windowed_by_definition


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("chunk", [1, 5, 40])
def test_a_window_is_what_its_definition_says(kept: int, chunk: int) -> None:
    """Recomputed with the same mask and the same positions within the cache, for every query."""
    model = decoder()
    rows, following = prompts([40]), torch.tensor(prompts([30]))
    with torch.no_grad():
        expected = windowed_by_definition(model, rows[0] + following[0].tolist(), 12, kept)
    found = logits_by_step(model, Window(model.kv_layout(), 1, 12, kept=kept), rows, following, chunk)
    torch.testing.assert_close(found[:, 0], expected[39:], rtol=0, atol=1e-4)
    assert (expected[39:] - recomputed_without_window(model, rows, following)).abs().max() > 0.1


def recomputed_without_window(model: torch.nn.Module, rows: list[list[int]], following: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        ids = torch.tensor([rows[0] + following[0].tolist()])
        logits: torch.Tensor = decoder(context=70)(ids)[0, 39:]
    return logits


@pytest.mark.parametrize("lengths", [(2, 25, 9), (17, 3), (1, 1)])
@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_rows_of_unequal_length_have_windows_of_their_own(lengths: tuple[int, ...], chunk: int) -> None:
    model, rows = decoder(), prompts(lengths)
    following = torch.tensor(prompts([20] * len(lengths)))
    found = logits_by_step(model, Window(model.kv_layout(), len(rows), 10, kept=2), rows, following, chunk)
    with torch.no_grad():
        for row, ids in enumerate(rows):
            expected = windowed_by_definition(model, ids + following[row].tolist(), 10, 2)[len(ids) - 1 :]
            torch.testing.assert_close(found[:, row], expected, rtol=0, atol=1e-4)


def test_a_window_in_eight_bits_stays_close_to_its_definition() -> None:
    model, rows, following = decoder(width=256), prompts([20]), torch.tensor(prompts([20]))
    found = logits_by_step(model, Window(model.kv_layout(), 1, 12, Int8), rows, following)
    with torch.no_grad():
        expected = windowed_by_definition(model, rows[0] + following[0].tolist(), 12, 4)[19:]
    assert (found[:, 0] - expected).norm() / expected.norm() < 0.06


def test_far_into_a_stream_the_window_is_still_exact() -> None:
    """A window only knows its kept tokens and the last ones: at any place the same ones give the same logits."""
    model = decoder(layers=1)
    first, last = prompts([2, 9])
    logits = []
    for between in (30, 100_000):
        cache = Window(model.kv_layout(), 1, 10, kept=2)
        with torch.no_grad():
            model(torch.tensor([first]), cache=cache)
            cache._end += between  # as if so many tokens had come and gone
            logits.append(model(torch.tensor([last]), cache=cache)[0, -1])
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-5)


def test_a_stream_takes_no_more_memory_the_longer_it_gets() -> None:
    model = decoder(layers=1, width=16, heads=2, kv_heads=1)
    stream = stream_tokens(
        model, [[1, 2, 3]], 100_000, Sampling(), caching=Caching(limit="window", length=32, kept=4), seed=1
    )
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(3):
            ids = [next(stream).id for _ in range(400)]
            assert all(0 <= token < 61 for token in ids)
            peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    stream.close()  # type: ignore[attr-defined]
    assert peaks[2] - peaks[1] < 20_000


def test_windows_that_cannot_be_are_refused() -> None:
    layout = decoder().kv_layout()
    learned = Layout(layout.layers, layout.kv_heads, layout.head_width, layout.dtype, layout.device, 64)
    with pytest.raises(UnsuitedModelError, match="a window needs rotary positions"):
        Window(learned, 1, 8)
    with pytest.raises(InferenceError, match="kept first tokens must be 0 or more and fewer than length=4, found 4"):
        Window(layout, 1, 4)
    with pytest.raises(InferenceError, match="a window of 65 tokens is longer than the model's context, 64"):
        Window(layout, 1, 65)
