"""Codecs by name, with what they are configured with when nothing else is said."""

import difflib
from types import MappingProxyType

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
