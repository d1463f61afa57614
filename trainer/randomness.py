"""Random numbers are counted, not carried: every generator's seed is a function of the run's seed and the clock."""

import hashlib
import random

import numpy as np
import torch


def derive_seed(seed: int, stream: str, *counters: int) -> int:
    """A 63-bit seed for one purpose: a hash of (seed, stream, counters), so neighbors share nothing."""
    text = ":".join([str(seed), stream, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_everything(seed: int) -> None:
    """Seed torch (every device), NumPy's and Python's global generators."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def seed_micro_batch(seed: int, rank: int, update: int, micro_batch: int) -> None:
    """Seed the generators for one micro-batch, which is why a resumed run needs no saved generator state."""
    derived = derive_seed(seed, "update", rank, update, micro_batch)
    torch.default_generator.manual_seed(derived)  # torch.manual_seed takes a millisecond where there is no GPU
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(derived)
    np.random.seed(derived % 2**32)
    random.seed(derived)
