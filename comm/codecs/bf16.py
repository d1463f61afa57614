"""Two bytes a value: bfloat16."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.comm.codecs.half import HalfCodec, Halves


@dataclass(frozen=True)
class Bf16(HalfCodec):
    """Rounded to eight significant bits; finite values beyond ±3.39e38 become ±3.39e38."""

    name: ClassVar[str] = "bf16"
    halves: ClassVar[Halves] = Halves(torch.bfloat16)
