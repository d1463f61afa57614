"""Codecs by name, with what they are configured with when nothing else is said, and as text that says all of it."""

import dataclasses
import difflib
import re
from types import MappingProxyType
from typing import Any

from gradwire.comm.codecs.bf16 import Bf16
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.fp8 import Fp8
from gradwire.comm.codecs.fp16 import Fp16
from gradwire.comm.codecs.int4 import Int4
from gradwire.comm.codecs.int8 import Int8
from gradwire.comm.codecs.none import NoCodec
from gradwire.comm.codecs.random_k import RandomK
from gradwire.comm.codecs.sign import Sign
from gradwire.comm.codecs.top_k import TopK
from gradwire.comm.errors import CodecError

_CODECS = MappingProxyType(
    {codec.name: codec for codec in (NoCodec(), Fp16(), Bf16(), Fp8(), Int8(), Int4(), Sign(), TopK(), RandomK())}
)

NAMES: tuple[str, ...] = tuple(_CODECS)


def named(name: str) -> Codec:
    """The codec of this name, as it is by default. Raises CodecError with the nearest right name."""
    if name in _CODECS:
        return _CODECS[name]
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CodecError(f"no codec is called {name!r}: there are {', '.join(NAMES)}.{hint}")


def spelled(codec: Codec) -> str:
    """The codec with its configuration, as `read` takes it: "int8(block=256, rounding=nearest)".

    Raises:
        CodecError: It is none of ours.
    """
    if type(codec) is not type(_CODECS.get(codec.name)):
        raise CodecError(f"{codec!r} is none of the codecs {', '.join(NAMES)}: it cannot be written as text")
    arguments = ", ".join(f"{field.name}={getattr(codec, field.name)}" for field in _arguments(codec))
    return f"{codec.name}({arguments})" if arguments else codec.name


def read(text: str) -> Codec:
    """The codec that `spelled` wrote.

    Raises:
        CodecError: Something else did.
    """
    found = _SPELLED.fullmatch(text)
    if found is None:
        raise CodecError(f"expected a codec such as {spelled(_CODECS['int8'])!r}, found {text[:_SHOWN]!r}")
    default = named(found["name"])
    given = dict(pair.split("=", 1) for pair in (found["arguments"] or "").split(", ") if pair)
    kinds = {field.name: type(getattr(default, field.name)) for field in _arguments(default)}
    if given.keys() != kinds.keys():
        raise CodecError(f"{default.name} takes {', '.join(kinds) or 'no arguments'}; found {text[:_SHOWN]!r}")
    arguments = {name: _value(kinds[name], value, text) for name, value in given.items()}
    codec: Codec = dataclasses.replace(default, **arguments)  # type: ignore[type-var]
    if spelled(codec) != text:
        raise CodecError(f"expected {spelled(codec)!r}, found {text[:_SHOWN]!r}")
    return codec


_ARGUMENT = "[a-z]+=[A-Za-z0-9.+-]+"
_SPELLED = re.compile(rf"(?P<name>[a-z0-9_]+)(\((?P<arguments>{_ARGUMENT}(, {_ARGUMENT})*)\))?")
_SHOWN = 80  # characters of a text that is no codec


def _arguments(codec: Codec) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(codec)  # type: ignore[arg-type]


def _value(kind: type, text: str, whole: str) -> Any:
    """The value of an argument of the type of its default."""
    try:
        return {"True": True, "False": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise CodecError(f"{text!r} is no {kind.__name__}, in the codec {whole[:_SHOWN]!r}") from error
