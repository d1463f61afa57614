"""What may sit on an axis to make its traffic smaller."""

from abc import ABC
from typing import ClassVar


class Compression(ABC):
    """A codec, or a reduction in low rank."""

    name: ClassVar[str]
    feedback: ClassVar[bool] = False  # error feedback?
    tolerance: ClassVar[float | None] = None  # relative error past which an axis falls back to bf16; None: never
