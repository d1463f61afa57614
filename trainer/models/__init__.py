"""Models that come with gradwire."""

from gradwire.trainer.models.convnet import ConvNet
from gradwire.trainer.models.decoder import Decoder
from gradwire.trainer.models.errors import ModelError
from gradwire.trainer.models.hf_causal_lm import HFCausalLM

__all__ = ["ConvNet", "Decoder", "HFCausalLM", "ModelError"]
