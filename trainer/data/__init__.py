"""Data: what a run trains on, in an order that is a pure function of the seed and the samples seen."""

from gradwire.trainer.data.chat import Chat, Instruction
from gradwire.trainer.data.digits import Digits
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.data.feed import Feed, MicroBatch, UpdateBatch, shares
from gradwire.trainer.data.hf import HuggingFace, HuggingFaceRows
from gradwire.trainer.data.hf_stream import HuggingFaceStream
from gradwire.trainer.data.mixture import Mixture
from gradwire.trainer.data.order import Permutation, Shuffled
from gradwire.trainer.data.packing import PackedDocuments
from gradwire.trainer.data.pair import Pair
from gradwire.trainer.data.parts import training_set, validation_set
from gradwire.trainer.data.python_source import PythonSource
from gradwire.trainer.data.stream import Ordered, Samples, SampleStream, length_of
from gradwire.trainer.data.text import Text
from gradwire.trainer.data.token_file import TokenFile
from gradwire.trainer.data.tokenize import tokenize
from gradwire.trainer.data.tokens import Tokens
from gradwire.trainer.data.windows import TokenWindows

__all__ = [
    "Chat",
    "DataError",
    "Digits",
    "Feed",
    "HuggingFace",
    "HuggingFaceRows",
    "HuggingFaceStream",
    "Instruction",
    "MicroBatch",
    "Mixture",
    "Ordered",
    "PackedDocuments",
    "Pair",
    "Permutation",
    "PythonSource",
    "SampleStream",
    "Samples",
    "Shuffled",
    "Text",
    "TokenFile",
    "TokenWindows",
    "Tokens",
    "UpdateBatch",
    "length_of",
    "shares",
    "tokenize",
    "training_set",
    "validation_set",
]
