"""The small JSON description beside a token file."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from gradwire.trainer.data.errors import DataError

Width = Literal["uint8", "uint16", "uint32"]
WIDTHS: tuple[Width, ...] = ("uint8", "uint16", "uint32")
_FORMAT = "gradwire-tokens-1"


def narrowest(vocabulary: int) -> Width:
    """The narrowest type that holds ids 0 … vocabulary−1."""
    for width in WIDTHS:
        if vocabulary <= 256 ** np.dtype(width).itemsize:
            return width
    raise DataError(f"a vocabulary of {vocabulary} ids does not fit into uint32")


@dataclass(frozen=True)
class TokenInfo:
    """What the file beside a token file (`<name>.json`) says.

    Args:
        dtype: Type of the integers.
        tokens: How many there are.
        vocabulary: All ids are below this.
        tokenizer: `bytes`, or the name or path of a Hugging Face tokenizer.
    """

    dtype: Width
    tokens: int
    vocabulary: int
    tokenizer: str

    @staticmethod
    def path_for(path: Path) -> Path:
        """Where the description of the token file at `path` is."""
        return path.with_name(f"{path.name}.json")

    @classmethod
    def read(cls, path: Path) -> "TokenInfo | None":
        """The description of the token file at `path`; None where there is none.

        Raises:
            DataError: it is not what `gradwire tokenize` writes.
        """
        beside = cls.path_for(path)
        try:
            fields = json.loads(beside.read_text("utf-8"))
            if fields.pop("format") != _FORMAT or fields["dtype"] not in WIDTHS:
                raise ValueError("unknown format or dtype")
            return cls(fields["dtype"], int(fields["tokens"]), int(fields["vocabulary"]), str(fields["tokenizer"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise DataError(
                f"{beside} does not describe a token file ({error!r}): write both anew with gradwire tokenize"
            ) from error

    def write(self, path: Path) -> None:
        """Put the description beside the token file at `path`, whole or not at all."""
        beside = self.path_for(path)
        temporary = beside.with_name(f"{beside.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"format": _FORMAT} | asdict(self)) + "\n", "utf-8")
        temporary.replace(beside)
