"""Where keys and values of past tokens are kept."""

from gradwire.inference.caches.cache import Cache
from gradwire.inference.caches.caching import Caching
from gradwire.inference.caches.contiguous import Contiguous
from gradwire.inference.caches.int8 import Int8
from gradwire.inference.caches.packed import Packed
from gradwire.inference.caches.paged import Paged
from gradwire.inference.caches.pool import Pool, PoolFullError, Table
from gradwire.inference.caches.static import Static
from gradwire.inference.caches.storage import MakeStorage, Plain, Storage
from gradwire.inference.caches.window import Window

__all__ = [
    "Cache",
    "Caching",
    "Contiguous",
    "Int8",
    "MakeStorage",
    "Packed",
    "Paged",
    "Plain",
    "Pool",
    "PoolFullError",
    "Static",
    "Storage",
    "Table",
    "Window",
]
