"""Text out of a model: sampling and generation, with no dependence on the trainer."""

from gradwire.inference.errors import InferenceError
from gradwire.inference.generate import generate
from gradwire.inference.sampling import Sampling

__all__ = ["InferenceError", "Sampling", "generate"]
