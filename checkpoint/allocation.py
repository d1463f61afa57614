"""Memory for what is large and is written from end to end at once."""

import numpy as np
import torch
from torch import Tensor

_LARGE = 4 * 2**20


def allocated(nbytes: int) -> Tensor:
    """[nbytes] uint8, not initialized.

    What is large is numpy's, which asks the kernel for huge pages, as torch does not: the first writing to it takes a
    quarter of the time.
    """
    return torch.empty(nbytes, dtype=torch.uint8) if nbytes < _LARGE else torch.from_numpy(np.empty(nbytes, np.uint8))
