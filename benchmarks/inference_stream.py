"""A stream far longer than a model's context, through a window: time of a token and memory as it goes on.

    python -m benchmarks.inference_stream [--tokens N] [--window N] [--kept N] [--marks N] [--json FILE]

The model is the decoder of 10 M parameters with fresh weights; what it writes is of no interest.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from gradwire.inference import Caching, Sampling, stream_tokens
from gradwire.trainer.models import Decoder


@dataclass(frozen=True)
class Mark:
    """A stretch of the stream.

    Attributes:
        end: Tokens so far.
        milliseconds: Of a token, the median of the stretch.
        processor_milliseconds: Of a token, the mean; also where other programs want the processor.
        resident: Bytes of the process at its end.
    """

    end: int
    milliseconds: float
    processor_milliseconds: float
    resident: int


def stream(model: Decoder, tokens: int, window: int, kept: int, marks: int) -> Iterator[Mark]:
    """Generate so many tokens, marked so many times, evenly."""
    caching = Caching(limit="window", length=window, kept=kept)
    coming = stream_tokens(model, [[1]], tokens, Sampling(), caching=caching)
    process, stretch = psutil.Process(), tokens // marks
    for mark in range(marks):
        seconds, used = [], time.process_time()
        for _ in range(stretch):
            started = time.perf_counter()
            next(coming)
            seconds.append(time.perf_counter() - started)
        used = (time.process_time() - used) / stretch
        resident = process.memory_info().rss
        yield Mark((mark + 1) * stretch, 1e3 * statistics.median(seconds), 1e3 * used, resident)


def main() -> None:
    """Print the marks as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--kept", type=int, default=4)
    parser.add_argument("--marks", type=int, default=20)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    torch.manual_seed(0)
    heads = 6 if told.width % 6 == 0 else 4
    model = Decoder(256, context=told.window, width=told.width, layers=told.layers, heads=heads, kv_heads=2).eval()
    print(f"{'tokens':>10}{'ms a token':>12}{'of processor':>14}{'resident, MiB':>16}")
    marks = []
    for mark in stream(model, told.tokens, told.window, told.kept, told.marks):
        times = f"{mark.milliseconds:>12.3f}{mark.processor_milliseconds:>14.3f}"
        print(f"{mark.end:>10,}{times}{mark.resident / 2**20:>16.1f}", flush=True)
        marks.append(mark)
    first, last = marks[1 if len(marks) > 2 else 0], marks[-1]  # the window fills in the first stretch
    grown = (last.resident - first.resident) / 2**20
    slower = last.milliseconds / first.milliseconds
    busier = last.processor_milliseconds / first.processor_milliseconds
    print(
        f"from {first.end:,} to {last.end:,} tokens: × {slower:.3f} in time, × {busier:.3f} in processor time, "
        f"{grown:+.1f} MiB"
    )
    if told.json is not None:
        told.json.write_text(json.dumps([asdict(mark) for mark in marks], indent=1) + "\n")


if __name__ == "__main__":
    main()
