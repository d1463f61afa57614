"""Two bytes a value: float16."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.comm.codecs.half import HalfCodec, Halves


@dataclass(frozen=True)
class Fp16(HalfCodec):
    """Rounded to eleven significant bits; finite values beyond ±65504 become ±65504."""

    name: ClassVar[str] = "fp16"
    halves: ClassVar[Halves] = Halves(torch.float16)
