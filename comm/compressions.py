"""Compressions of an axis by name, with what they are configured with when nothing else is said."""

import difflib
from types import MappingProxyType

from gradwire.comm import codecs
from gradwire.comm.compression import Compression
from gradwire.comm.errors import CodecError
from gradwire.comm.momentum import DeepGradientCompression
from gradwire.comm.power_sgd import PowerSGD

_COMPRESSIONS = MappingProxyType(
    {
        **{name: codecs.named(name) for name in codecs.NAMES},
        **{each.name: each for each in (DeepGradientCompression(), PowerSGD())},
    }
)

NAMES: tuple[str, ...] = tuple(_COMPRESSIONS)


def named(name: str) -> Compression:
    """The compression of this name, as it is by default.

    Raises:
        CodecError: There is none; says which name is near.
    """
    if name in _COMPRESSIONS:
        return _COMPRESSIONS[name]
    near = difflib.get_close_matches(name, NAMES, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CodecError(f"no codec is called {name!r}: there are {', '.join(NAMES)}.{hint}")
