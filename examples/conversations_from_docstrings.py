"""Writes conversations that every machine has: what functions of Python's standard library are, by their docstrings.

    python examples/conversations_from_docstrings.py chats.jsonl

Each line of the file is a conversation, as data=chat reads it.
"""

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = (
    "builtins",
    "collections",
    "inspect",
    "itertools",
    "json",
    "math",
    "os",
    "random",
    "re",
    "shutil",
    "statistics",
    "string",
)


def conversations() -> Iterator[dict[str, list[dict[str, str]]]]:
    """A question and its answer for each documented name."""
    for module in MODULES:
        for name, value in sorted(vars(importlib.import_module(module)).items()):
            paragraph = (inspect.getdoc(value) or "").partition("\n\n")[0] if callable(value) else ""
            if name.startswith("_") or not 20 < len(paragraph) < 300:
                continue
            question, answer = f"What is {module}.{name}?", " ".join(paragraph.split())
            yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


if __name__ == "__main__":
    lines = [json.dumps(each) for each in conversations()]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} conversations in {sys.argv[1]}")
