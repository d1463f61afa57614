"""Continuous against static batching, on requests of very different lengths."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.comm.benchmark.paired import compare
from gradwire.inference import Engine, Pool, Request, generate
from gradwire.trainer.bench.inference_models import GREEDY
from gradwire.trainer.models import Decoder


@dataclass(frozen=True)
class Batching:
    """Useful tokens a second by round, and their ratio.

    Attributes:
        requests: How many.
        rows: Sequences at a time.
        static: Batches in order of arrival, each until its longest is done.
        continuous: The engine.
        ratio: How many times as many tokens a second the engine makes: median and 95 % interval.
        preemptions: Sequences that gave their blocks back, in all rounds.
    """

    requests: int
    rows: int
    static: tuple[float, ...]
    continuous: tuple[float, ...]
    ratio: tuple[float, float, float]
    preemptions: int


def workload(count: int, longest: int, vocabulary: int) -> list[Request]:
    """Requests as users send them: short prompts, and answers of exponentially distributed lengths."""
    chooser = random.Random(1)
    requests = []
    for _ in range(count):
        prompt = tuple(chooser.randrange(vocabulary) for _ in range(chooser.randint(4, max(4, longest // 8))))
        new = min(longest - len(prompt), 1 + int(chooser.expovariate(6 / longest)))
        requests.append(Request(prompt, new, GREEDY))
    return requests


def measure(model: Decoder, requests: Sequence[Request], rows: int, rounds: int) -> Batching:
    """Both ways in turns; the pool of the engine has as much memory as the static batch."""
    longest = max(len(each.prompt) + each.max_new_tokens for each in requests)
    tokens = sum(each.max_new_tokens for each in requests)
    static, continuous, preemptions = [], [], 0
    for number in range(rounds):
        for way in ("static", "continuous")[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            if way == "static":
                _static(model, requests, rows)
                static.append(tokens / (time.perf_counter() - started))
            else:
                engine = Engine(model, Pool(model.kv_layout(), rows * -(-longest // 16)), most=rows)
                engine.run(requests)
                continuous.append(tokens / (time.perf_counter() - started))
                preemptions += engine.preemptions
    return Batching(len(requests), rows, tuple(static), tuple(continuous), compare(continuous, static), preemptions)


def _static(model: Decoder, requests: Sequence[Request], rows: int) -> None:
    for start in range(0, len(requests), rows):
        batch = requests[start : start + rows]
        generate(model, [list(each.prompt) for each in batch], max(each.max_new_tokens for each in batch), GREEDY)
