"""Conversations and instructions as samples, and what is refused."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.trainer.data import Chat, DataError, Instruction, Mixture, SampleStream
from gradwire.trainer.losses import IGNORED

MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}<e>{% endgeneration %}"
    "{% else %}<u>{{ m.content }}{% endif %}{% endfor %}"
)


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def written(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def sums(count: int) -> list[dict[str, Any]]:
    return [{"messages": [turn("user", f"{i}+{i}?"), turn("assistant", f"{2 * i}")]} for i in range(count)]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of words, with a chat template that has generation markers."""
    return saved_tokenizer(tmp_path / "tokenizer", MARKED)


def saved_tokenizer(folder: Path, template: str | None) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["<u>", "<a>", "<e>", "?", "one", "two", "three", "yes", "no", "u", "a", "e"]
    backend = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="?"))
    backend.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<e>", unk_token="?", additional_special_tokens=["<u>", "<a>"]
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def learned(data: Any, sample: dict[str, torch.Tensor]) -> str:
    return str(data.decode([label for label in sample["labels"].tolist() if label != IGNORED]))


def test_the_plain_template_has_a_line_a_message_and_the_assistant_s_words_are_learned(tmp_path: Path) -> None:
    turns = [turn("system", "Be brief."), turn("user", "é?"), turn("assistant", "Yes."), turn("user", "So?")]
    path = written(tmp_path / "a.jsonl", ["", {"messages": [*turns, turn("assistant", "No.")]}])
    data = Chat(path, context=96, validation_fraction=0)
    sample = data.train[0]
    text = "system: Be brief.\nuser: é?\nassistant: Yes.\x1c\nuser: So?\nassistant: No.\x1c"
    assert data.decode(sample["input_ids"].tolist()) == text + "\x1c" * (96 - len(text.encode()))
    assert learned(data, sample) == " Yes.\x1c No.\x1c"
    assert data.validation is None
    assert data.vocabulary == 256


def test_a_tokenizer_s_own_template_says_what_is_learned(tmp_path: Path, tokenizer: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"messages": [turn("user", "one two"), turn("assistant", "three")]}])
    data = Chat(path, context=8, tokenizer=str(tokenizer), validation_fraction=0)
    assert data.train[0]["input_ids"].tolist() == [0, 4, 5, 1, 6, 2, 2, 2]
    assert data.train[0]["labels"].tolist() == [IGNORED] * 3 + [6, 2] + [IGNORED] * 3


def test_a_template_can_be_a_file_or_plain(tmp_path: Path) -> None:
    rows = [{"messages": [turn("user", "one"), turn("assistant", "yes"), turn("user", "two"), turn("assistant", "no")]}]
    path = written(tmp_path / "a.jsonl", rows)
    bare = saved_tokenizer(tmp_path / "bare", None)
    (tmp_path / "t.jinja").write_text(MARKED)
    data = Chat(path, context=10, tokenizer=str(bare), template=str(tmp_path / "t.jinja"), validation_fraction=0)
    assert learned(data, data.train[0]).split() == ["yes", "<e>", "no", "<e>"]
    plain = Chat(path, context=32, tokenizer=str(bare), template="plain", validation_fraction=0)
    assert learned(plain, plain.train[0]).split() == ["yes", "<e>", "no", "<e>"]


def test_instructions_are_conversations_of_two_turns(tmp_path: Path) -> None:
    rows = [{"q": "Add.", "x": "1 1", "a": "2"}, {"q": "Hi", "x": "", "a": "Hello"}]
    path = written(tmp_path / "a.jsonl", rows)
    data = Instruction(path, instruction="q", input="x", output="a", system="S", context=96, validation_fraction=0)
    (sample,) = data.train
    first, second = "system: S\nuser: Add.\n\n1 1\nassistant: 2\x1c", "system: S\nuser: Hi\nassistant: Hello\x1c"
    assert data.decode(sample["input_ids"].tolist()).rstrip("\x1c") == (first + second).rstrip("\x1c")
    assert learned(data, sample) == " 2\x1c Hello\x1c"


def test_a_data_set_on_disk_is_read_like_a_file(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list(sums(8))
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(str(tmp_path / "parts"))
    files = Chat(written(tmp_path / "a.jsonl", sums(8)), context=64, validation_fraction=0)
    one = Chat(dataset=str(tmp_path / "one"), context=64, validation_fraction=0)
    parts = Chat(dataset=str(tmp_path / "parts"), context=64, validation_split="test")
    for data in (one, parts):
        assert torch.equal(data.train[1]["input_ids"], files.train[1]["input_ids"])
    assert parts.validation is not None
    assert learned(parts, parts.validation[0]) == " 0\x1c"
    with pytest.raises(DataError, match=r"split 'dev' of the data set saved in .*parts cannot be opened"):
        Chat(dataset=str(tmp_path / "parts"), split="dev").train  # noqa: B018


def test_the_last_conversations_validate(tmp_path: Path) -> None:
    data = Chat(written(tmp_path / "a.jsonl", sums(40)), context=32, validation_fraction=0.1)
    assert data.validation is not None
    texts = [learned(data, data.validation[k]) for k in range(len(data.validation))]
    assert sorted("".join(texts).split("\x1c")) == ["", " 72", " 74", " 76", " 78"]
    both = Chat(str(tmp_path / "a.jsonl"), validation_paths=written(tmp_path / "b.jsonl", sums(2)), context=32)
    assert both.validation is not None
    assert len(both.validation) == 2
    assert sum(learned(both, sample).count("\x1c") for sample in both.train) == 40


def test_a_sample_is_a_function_of_seed_and_number(tmp_path: Path, cache: Path) -> None:
    path = written(tmp_path / "a.jsonl", sums(60))
    first = SampleStream(Chat(path, context=48).train, 7).fetch(np.arange(50))
    made = {file: file.stat().st_mtime_ns for file in cache.glob("chat-*.bin")}
    again = SampleStream(Chat(path, context=48).train, 7)
    assert all(torch.equal(again.fetch(np.array([k]))["labels"][0], first["labels"][k]) for k in (49, 0, 17))
    assert made == {file: file.stat().st_mtime_ns for file in cache.glob("chat-*.bin")}
    other = SampleStream(Chat(path, context=48).train, 8).fetch(np.arange(50))
    assert not torch.equal(other["labels"], first["labels"])


def test_what_is_too_long_is_cut_and_counted_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long, lost = [turn("user", "?"), turn("assistant", "x" * 90)], [turn("user", "?" * 90), turn("assistant", "x")]
    path = written(tmp_path / "a.jsonl", [*sums(3), {"messages": long}, {"messages": lost}])
    with caplog.at_level(logging.WARNING, "gradwire"):
        data = Chat(path, context=64, validation_fraction=0)
        rows = [learned(data, sample) for sample in data.train]
    assert "2 of 5 conversations are longer than data.context=64 tokens and are cut there; 1 of them" in caplog.text
    assert " " + "x" * 45 in rows
    with pytest.raises(DataError, match=r"a.jsonl:4: the conversation has 110 tokens and data.context=64"):
        Chat(path, context=64, overlong="refuse").train  # noqa: B018
    with pytest.raises(DataError, match=r"none of 5 conversations has anything to learn within data.context=4"):
        Chat(path, context=4).train  # noqa: B018


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"messages": [', r"a.jsonl:2 is not JSON \(.*column 15.*\), found {\"messages\": \[: expected one object"),
        ("[1]", "a.jsonl:2 holds a JSON list, expected an object"),
        ({"conversations": []}, "a.jsonl:2 has no 'messages', it has conversations: say with data.messages"),
        ({"messages": "hi"}, "a.jsonl:2: 'messages' holds str, expected a list of messages"),
        ({"messages": []}, "a.jsonl:2: the conversation is empty"),
        ({"messages": [turn("asistant", "x")]}, "message 1: the role is 'asistant', .*did you mean assistant?"),
        ({"messages": [{"from": "human"}]}, r"message 1: found {'from': 'human'}, expected {\"role\""),
        ({"messages": [turn("user", [{"type": "image"}])]}, "message 1: the content is list, expected text"),
        ({"messages": [turn("user", "a"), turn("user", "b")]}, r"no message is the assistant's \(roles: user, user\)"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "a.jsonl:2: template=plain writes no tool calls"),
    ],
)
def test_a_row_that_is_no_conversation_is_named(row: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [*sums(1), row])
    with pytest.raises(DataError, match=message):
        Chat(path).train  # noqa: B018


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"instruction": "a"}, "a.jsonl:1 has no 'output', it has instruction: say with data.output"),
        ({"instruction": " ", "output": "b"}, "a.jsonl:1: 'instruction' is empty, expected text"),
        ({"instruction": "a", "output": 3}, "a.jsonl:1: 'output' holds int, expected text"),
    ],
)
def test_a_row_that_is_no_instruction_is_named(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        Instruction(written(tmp_path / "a.jsonl", [row])).train  # noqa: B018


@pytest.mark.parametrize(
    ("template", "chosen", "message"),
    [
        (None, None, "has no chat template: set data.template=plain"),
        ("{{ messages }}", None, r"has no {% generation %} … {% endgeneration %} around what the assistant says"),
        (MARKED, "none.jinja", "template=none.jinja is neither plain nor a file"),
        ("{{ raise_exception('no system') }}{% generation %}{% endgeneration %}", None, "a.jsonl:1: .*no system"),
        ("{{ messages[0].content }}{% generation %}{% endgeneration %}", None, "a.jsonl:1: .* marks nothing"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(
    template: str | None, chosen: str | None, message: str, tmp_path: Path
) -> None:
    folder = saved_tokenizer(tmp_path / "tokenizer", template)
    with pytest.raises(DataError, match=message):
        Chat(written(tmp_path / "a.jsonl", sums(1)), tokenizer=str(folder), template=chosen).train  # noqa: B018


def test_arguments_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", sums(1))
    with pytest.raises(DataError, match="paths or dataset says where the rows are, found neither"):
        Chat()
    with pytest.raises(DataError, match="found both"):
        Chat(path, dataset="x")
    with pytest.raises(DataError, match="validation_split is of a data set"):
        Chat(path, validation_split="test")
    with pytest.raises(DataError, match="template=t: the tokenizer 'bytes' knows plain only"):
        Chat(path, template="t")


def test_packed_sources_mix_with_packed_ones_only(tmp_path: Path) -> None:
    chat = Chat(written(tmp_path / "a.jsonl", sums(9)), context=48)
    more = Instruction(written(tmp_path / "b.jsonl", [{"instruction": "a", "output": "b"}]), context=48)
    mixed = Mixture({"chat": chat, "more": more}, {"chat": 1.0, "more": 1.0}, 4)
    assert mixed.packed
    assert SampleStream(mixed.train, 0).fetch(np.arange(6))["positions"].shape == (6, 48)
    from gradwire.trainer.data import PythonSource

    with pytest.raises(DataError, match="need the same packed"):
        Mixture({"chat": chat, "code": PythonSource(48)}, {"chat": 1.0, "code": 1.0})
