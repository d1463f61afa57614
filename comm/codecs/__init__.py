"""Codecs: float32 values into fewer bytes, and back."""

from gradwire.comm.codecs.bf16 import Bf16
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.codecs.fp8 import Fp8
from gradwire.comm.codecs.fp16 import Fp16
from gradwire.comm.codecs.int4 import Int4
from gradwire.comm.codecs.int8 import Int8
from gradwire.comm.codecs.names import NAMES, named, read, spelled
from gradwire.comm.codecs.none import NoCodec
from gradwire.comm.codecs.random_k import RandomK
from gradwire.comm.codecs.sign import Sign
from gradwire.comm.codecs.sparse import SparseCodec
from gradwire.comm.codecs.top_k import TopK

__all__ = [
    "NAMES",
    "Bf16",
    "Codec",
    "Fp8",
    "Fp16",
    "Int4",
    "Int8",
    "NoCodec",
    "RandomK",
    "Sign",
    "SparseCodec",
    "TopK",
    "named",
    "read",
    "spelled",
]
