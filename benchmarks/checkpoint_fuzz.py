"""Coverage-guided fuzzing of every parser of a store, with atheris (pip install atheris).

python benchmarks/checkpoint_fuzz.py PARSER [libFuzzer's options, such as -max_total_time=600]
"""

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["gradwire.checkpoint"]):
    from benchmarks.checkpoint_faults.parsers import DOCUMENTS, TARGETS, altered, seeds, try_parser


VALUES = (
    *("null", "true", "-1", "0", "1", str(2**53 + 1), str(2**62 + 1), str(10**30), "0.5", '""', '"float32"', '"raw"'),
    *(
        f'"{"0" * 64}"',
        f'"{"0" * 32}"',
        "[]",
        "{}",
        "[[0, 0]]",
        '{"tensor": 0}',
        '{"float": "nan"}',
        '{"dict": [[0, 0]]}',
    ),
)


def _altered(data: atheris.FuzzedDataProvider, valid: list[bytes]) -> bytes:
    """A valid document, altered as the data say."""

    def value() -> Any:
        found = json.loads(VALUES[choose(len(VALUES))])
        return found if choose(4) else [found, data.ConsumeUnicodeNoSurrogates(20)]

    def choose(below: int) -> int:
        return int(data.ConsumeIntInRange(0, below - 1))

    return altered(valid[choose(len(valid))], 1 + choose(3), choose, value)


def main() -> None:
    names = ", ".join(TARGETS)
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"{__doc__}\nPARSER is one of: {names}")
    name = sys.argv[1]
    logging.disable()
    valid = seeds()[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(valid):
            (Path(corpus) / str(number)).write_bytes(data)

        def one(data: bytes) -> None:
            try_parser(name, data)
            if name in DOCUMENTS:
                try_parser(name, _altered(atheris.FuzzedDataProvider(data), valid))

        atheris.Setup([sys.argv[0], *sys.argv[2:], corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
