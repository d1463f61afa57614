"""Conversations as token ids, with which of them are the assistant's own words."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.messages import ASSISTANT, Conversation, Message
from gradwire.trainer.data.tokenizer import HuggingFaceTokenizer, Tokenizer

PLAIN = "plain"
PLAIN_JINJA = (  # the same for other programs
    "{% for message in messages %}{{ '' if loop.first else '\\n' }}{{ message.role }}:"
    "{% if message.role == 'assistant' %}{% generation %} {{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %} {{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n' }}assistant:{% endif %}"
)
Marked = tuple[Sequence[int], Sequence[bool]]  # token ids, and for each whether it is the assistant's
_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTemplate(Protocol):
    """Conversations as token ids."""

    def __call__(self, conversation: Conversation) -> Marked:
        """A conversation's ids, and for each whether it is the assistant's."""
        ...

    def digest(self) -> str:
        """Changes when the same conversation would become something else."""
        ...


class PlainTemplate:
    """A line for each message, `role: content`; what the assistant says ends with the tokenizer's end of text.

    Args:
        tokenizer: Any that has an end of text.

    Raises:
        DataError: it has none.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not tokenizer.separator:
            raise DataError(
                f"template={PLAIN} ends the assistant's turns with the end-of-text token, and the tokenizer "
                f"{tokenizer.name!r} has none: give the tokenizer one, or name a chat template's file"
            )
        self._tokenizer = tokenizer

    def __call__(self, conversation: Conversation) -> Marked:
        """A conversation's ids, and for each whether it is the assistant's."""
        ids: list[int] = []
        marks: list[bool] = []
        for number, message in enumerate(conversation.messages):
            told, said = self._parts(message, conversation.where)
            told = f"\n{told}" if number else told
            for text, mark in ((told, False), (said, True)):
                piece = self._tokenizer.encode(text) if text else []
                piece += self._tokenizer.separator if mark and text else ()
                ids += piece
                marks += [mark] * len(piece)
        return ids, marks

    @staticmethod
    def _parts(message: Message, where: str) -> tuple[str, str]:
        if "content" not in message:
            raise DataError(f"{where}: template={PLAIN} writes no tool calls: use the tokenizer's own chat template")
        role, content = message["role"], message["content"]
        return (f"{role}:", f" {content}") if role == ASSISTANT else (f"{role}: {content}", "")

    def digest(self) -> str:
        return f"{PLAIN} 1 {self._tokenizer.digest()}"


class JinjaTemplate:
    """A chat template as transformers renders it; what lies within its generation markers is the assistant's.

    Args:
        tokenizer: Of the transformers package.
        text: The template; None takes the tokenizer's own.

    Raises:
        DataError: there is none, it has no generation markers, or the tokenizer cannot say where its tokens stand.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer, text: str | None) -> None:
        text = tokenizer.chat_template if text is None else text
        if text is None:
            raise DataError(
                f"the tokenizer {tokenizer.name!r} has no chat template: set data.template={PLAIN}, or to the file of "
                "a Jinja template"
            )
        if not _MARKER.search(text):
            raise DataError(
                f"the chat template of {tokenizer.name!r} has no {{% generation %}} … {{% endgeneration %}} around "
                "what the assistant says, which alone is learned: set data.template to the file of one that has, or to "
                f"{PLAIN}"
            )
        self._tokenizer = tokenizer
        self._text = text

    def __call__(self, conversation: Conversation) -> Marked:
        """A conversation's ids, and for each whether it is the assistant's.

        Raises:
            DataError: the template refuses the conversation, or marks nothing of it.
        """
        try:
            ids, marks = self._tokenizer.apply_template(conversation.messages, self._text)
        except Exception as error:  # whatever a template raises is what it has against a conversation
            raise DataError(f"{conversation.where}: the chat template refuses the conversation: {error}") from error
        if not any(marks):
            raise DataError(f"{conversation.where}: the chat template marks nothing as the assistant's")
        return ids, marks

    def digest(self) -> str:
        made_from = f"jinja 1 {self._tokenizer.digest()} {self._tokenizer.special_tokens()} {self._text}"
        return hashlib.blake2b(made_from.encode(), digest_size=16).hexdigest()


def chat_template(tokenizer: Tokenizer, template: str | None) -> ChatTemplate:
    """The template by its name: `plain`, a file's path, or None for the tokenizer's own (of bytes: plain).

    Raises:
        DataError: there is no such template, or the tokenizer cannot use it.
    """
    if template == PLAIN or (template is None and not isinstance(tokenizer, HuggingFaceTokenizer)):
        return PlainTemplate(tokenizer)
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        raise DataError(f"template={template}: the tokenizer {tokenizer.name!r} knows {PLAIN} only")
    if template is None:
        return JinjaTemplate(tokenizer, None)
    try:
        text = Path(template).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"template={template} is neither {PLAIN} nor a file with a template: {error}") from error
    return JinjaTemplate(tokenizer, text)
