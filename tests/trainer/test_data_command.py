"""`gradwire data preview`: a sample of the run, with what is not learned in grey."""

import json
from pathlib import Path

import pytest

from tests.trainer.commands import gradwire

GREY, END = "\x1b[90m", "\x1b[0m"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def chat(tmp_path: Path) -> list[str]:
    """Overrides for one conversation."""
    messages = [{"role": "user", "content": "Hi\x1b[2J"}, {"role": "assistant", "content": "[red]Yes"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}))
    return ["data=chat", f"data.paths=[{tmp_path}/a.jsonl]", "data.context=64"]


def test_without_colors_what_is_learned_is_bracketed(chat: list[str]) -> None:
    done = gradwire("data", "preview", *chat, "--count", "2")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.split("sample 1: ")
    text = "── user: Hi␛[2J\nassistant:⟦ [red]Yes␜⟧\n"
    assert first == f"sample 0: 1 document, 64 tokens, 10 learned, 31 of padding\n{text}"
    assert rest == [f"1 document, 64 tokens, 10 learned, 31 of padding\n{text}"]


def test_with_colors_what_is_not_learned_is_grey(chat: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = gradwire("data", "preview", *chat)
    assert f"{GREY}user: Hi␛[2J{END}\n{GREY}assistant:{END} [red]Yes␜\n" in done.stdout
    assert "⟦" not in done.stdout


def test_any_text_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc" * 100)
    done = gradwire("data", "preview", "data=text", f"data.paths=[{tmp_path}/a.txt]", "data.context=8")
    assert done.stdout.startswith("sample 0: 1 document, 8 tokens, 7 learned\n── ")
    assert "⟦" in done.stdout


def test_what_cannot_be_shown_is_refused(chat: list[str]) -> None:
    done = gradwire("data", "preview", "experiment=digits")
    assert (done.returncode, done.stderr) == (2, "Digits cannot be shown as text: it has no decode\n")
    done = gradwire("data", "preview", *chat, "data.messages=turns")
    assert done.returncode == 2
    assert "a.jsonl:1 has no 'turns', it has messages: say with data.messages" in done.stderr
    done = gradwire("data", "preview", "data=chat")
    assert done.returncode == 2
    assert done.stderr.startswith("data.paths (")
