"""Every codec in every configuration that takes another way through the code."""

from gradwire.comm.codecs import Bf16, Codec, Fp8, Fp16, Int4, Int8, NoCodec, RandomK, Sign, TopK

DENSE: tuple[Codec, ...] = (
    NoCodec(),
    Fp16(),
    Bf16(),
    Fp8(),
    Fp8("e5m2", block=64),
    Int8(),
    Int8(block=24),
    Int8(rounding="stochastic"),
    Int4(),
    Int4(block=8),
    Int4(rounding="stochastic"),
    Int4(hadamard=True),
    Sign(),
    Sign(block=40),
)
SPARSE: tuple[TopK | RandomK, ...] = (TopK(threshold="exact"), TopK(), TopK(0.3), RandomK(), RandomK(0.37))
EVERY: tuple[Codec, ...] = (*DENSE, *SPARSE)
