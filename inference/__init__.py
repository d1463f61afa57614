"""Text out of a model: key/value caches, sampling and generation, with no dependence on the trainer."""

from gradwire.inference.attention import attention
from gradwire.inference.caches import (
    Cache,
    Caching,
    Contiguous,
    Int8,
    Paged,
    Plain,
    Pool,
    PoolFullError,
    Static,
    Table,
    Window,
)
from gradwire.inference.compiled import Compiled
from gradwire.inference.completion import Completion, Token
from gradwire.inference.engine import Engine
from gradwire.inference.errors import CacheFullError, InferenceError, UnsuitedModelError
from gradwire.inference.generate import generate, stream_tokens
from gradwire.inference.model import CachedModel, Layout
from gradwire.inference.parallel import Shares, generate_shared
from gradwire.inference.request import Request
from gradwire.inference.rotation import Rotation, rotate
from gradwire.inference.run import Lockstep
from gradwire.inference.sampling import Sampling
from gradwire.inference.stopping import Stop, TextStream

__all__ = [
    "Cache",
    "CacheFullError",
    "CachedModel",
    "Caching",
    "Compiled",
    "Completion",
    "Contiguous",
    "Engine",
    "InferenceError",
    "Int8",
    "Layout",
    "Lockstep",
    "Paged",
    "Plain",
    "Pool",
    "PoolFullError",
    "Request",
    "Rotation",
    "Sampling",
    "Shares",
    "Static",
    "Stop",
    "Table",
    "TextStream",
    "Token",
    "UnsuitedModelError",
    "Window",
    "attention",
    "generate",
    "generate_shared",
    "rotate",
    "stream_tokens",
]
