"""Rows as conversations: lists of messages, each with a role and a content."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.records import Record

ROLES = ("system", "user", "assistant", "tool")
ASSISTANT = "assistant"
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """Messages, at least one of which is the assistant's.

    Args:
        where: Says to people where it stands.
        messages: Each with `role` and `content` at least.
    """

    where: str
    messages: list[Message]


class Reading(Protocol):
    """Makes a row a conversation."""

    def __call__(self, record: Record) -> Conversation: ...

    def digest(self) -> str:
        """Changes when the same row would become another conversation."""
        ...


@dataclass(frozen=True)
class Messages:
    """Rows that hold a list of messages.

    Args:
        field: Its name.
    """

    field: str

    def __call__(self, record: Record) -> Conversation:
        """The conversation.

        Raises:
            DataError: there is none, it is empty, a message is none, or the assistant says nothing.
        """
        found = _field(record, self.field, "data.messages")
        if not isinstance(found, list):
            raise DataError(f"{record.where}: {self.field!r} holds {type(found).__name__}, expected a list of messages")
        if not found:
            raise DataError(f"{record.where}: the conversation is empty, expected messages: leave the row out")
        messages = [_message(each, f"{record.where}, message {number}") for number, each in enumerate(found, 1)]
        if all(message["role"] != ASSISTANT for message in messages):
            raise DataError(
                f"{record.where}: no message is the assistant's (roles: {', '.join(m['role'] for m in messages)}), so "
                "there is nothing to learn: leave the row out"
            )
        return Conversation(record.where, messages)

    def digest(self) -> str:
        return f"messages {self.field}"


@dataclass(frozen=True)
class Instructions:
    """Rows with an instruction and its answer, as a conversation of two messages.

    Args:
        instruction: Field with what is asked.
        input: Field with what it is about, which follows after an empty line; None, or an empty field, is nothing.
        output: Field with the answer.
        system: What the system says first; None is nothing.
    """

    instruction: str
    input: str | None
    output: str
    system: str | None

    def __call__(self, record: Record) -> Conversation:
        """The conversation.

        Raises:
            DataError: a field is missing, empty or no text.
        """
        asked = _text(record, self.instruction, "data.instruction")
        about = record.values.get(self.input) if self.input is not None else None
        if about:
            asked = f"{asked}\n\n{_text(record, str(self.input), 'data.input')}"
        answer = _text(record, self.output, "data.output")
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        both = [{"role": "user", "content": asked}, {"role": ASSISTANT, "content": answer}]
        return Conversation(record.where, [*told, *both])

    def digest(self) -> str:
        return f"instructions {self.instruction} {self.input} {self.output} {self.system!r}"


def _field(record: Record, field: str, key: str) -> Any:
    if field not in record.values:
        names = ", ".join(map(str, record.values)) or "nothing"
        raise DataError(f"{record.where} has no {field!r}, it has {names}: say with {key} what it is called")
    return record.values[field]


def _text(record: Record, field: str, key: str) -> str:
    found = _field(record, field, key)
    if not isinstance(found, str) or not found.strip():
        what = "is empty" if isinstance(found, str) else f"holds {type(found).__name__}"
        raise DataError(f"{record.where}: {field!r} {what}, expected text: leave the row out")
    return found


def _message(found: Any, where: str) -> Message:
    if not isinstance(found, Mapping) or "role" not in found:
        raise DataError(f'{where}: found {str(found)[:60]}, expected {{"role": …, "content": …}}')
    message = {name: value for name, value in found.items() if value is not None}
    role = message.get("role")
    if role not in ROLES:
        near = difflib.get_close_matches(str(role), ROLES, 1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise DataError(f"{where}: the role is {role!r}, expected one of {', '.join(ROLES)}{hint}")
    if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
        kind = type(message.get("content")).__name__
        raise DataError(f"{where}: the content is {kind}, expected text (pictures and sounds are not read)")
    return message
