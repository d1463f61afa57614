"""Codecs: float32 values into fewer bytes, and back."""

from gradwire.comm.codecs.bf16 import Bf16
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.fp16 import Fp16
from gradwire.comm.codecs.int8 import Int8
from gradwire.comm.codecs.names import NAMES, named
from gradwire.comm.codecs.none import NoCodec

__all__ = ["NAMES", "Bf16", "Codec", "Fp16", "Int8", "NoCodec", "named"]
