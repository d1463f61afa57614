"""What stands beside the weights in a Hugging Face folder: the tokenizer, and how text is generated."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from torch import nn

from gradwire.trainer.config.construction import argument
from gradwire.trainer.data.chat_template import PLAIN, PLAIN_JINJA
from gradwire.trainer.data.tokenizer import BYTES, ByteTokenizer, load_tokenizer
from gradwire.trainer.errors import StateMismatchError

GENERATION = "generation_config.json"


def files_beside(config: Mapping[str, Any], model: nn.Module, allow: tuple[str, ...]) -> dict[str, bytes]:
    """The files by name: generation_config.json, and the tokenizer's where the run's data has one.

    Args:
        config: The run's configuration.
        model: Its model.
        allow: Packages that the user allows targets from.

    Raises:
        DataError: there is no such tokenizer any more.
        StateMismatchError: the file of the chat template is gone.
    """
    name = argument(config, "data", "tokenizer", allow)
    if name is None and str(config["data"].get("_target_", "")).endswith(".PythonSource"):
        name = BYTES
    generation = _generation(model)
    if name is None:
        return {GENERATION: _json(generation)}
    separator = load_tokenizer(name).separator
    end = separator[0] if separator else None
    defaults = {"eos_token_id": end, "pad_token_id": end}
    generation |= {key: value for key, value in defaults.items() if generation.get(key) is None}
    tokenizer = _byte_tokenizer() if name == BYTES else _named(name)
    tokenizer.chat_template = _template(argument(config, "data", "template", allow), name, tokenizer.chat_template)
    return {GENERATION: _json(generation), **_saved(tokenizer)}


def _generation(model: nn.Module) -> dict[str, Any]:
    inner = getattr(getattr(model, "model", None), "generation_config", None)
    found: dict[str, Any] = json.loads(inner.to_json_string()) if inner is not None else {}
    return found


def _json(values: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(values, indent=2)}\n".encode()


def _named(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def _template(chosen: str | None, name: str, own: Any) -> Any:
    """The chat template that the data was written with."""
    if chosen == PLAIN or (chosen is None and name == BYTES):
        return PLAIN_JINJA
    if chosen is None:
        return own
    try:
        return Path(chosen).expanduser().read_text("utf-8")
    except OSError as error:
        raise StateMismatchError(
            f"the chat template data.template={chosen} cannot be read any more: {error}"
        ) from error


def _byte_tokenizer() -> Any:
    """Bytes as their own token ids, for the transformers package."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = _letters()
    backend = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    end, kind = letters[ByteTokenizer.separator[0]], cast(Any, PreTrainedTokenizerFast)
    return kind(tokenizer_object=backend, eos_token=end, pad_token=end)


def _letters() -> list[str]:
    """The visible letter by which byte-level tokenizers write each byte (Radford 2019): itself, or one past 255."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def _saved(tokenizer: Any) -> dict[str, bytes]:
    with TemporaryDirectory(prefix="gradwire-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir()) if file.is_file()}
