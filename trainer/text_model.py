"""A run's model, ready to write text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gradwire.checkpoint import load_weights
from gradwire.trainer.assemble import build_model, component
from gradwire.trainer.checkpoint_reference import Reference
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.launch.context import choose_device

_PLAIN = {"compile": False, "activation_checkpointing": False, "sync_batchnorm": False}  # they are for training


@dataclass(frozen=True)
class TextModel:
    """A model and what turns text into its tokens and back.

    Attributes:
        model: In evaluation, on its device.
        encode: Text to token ids.
        decode: Token ids to text.
        update: Of the weights.
    """

    model: nn.Module
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    update: int

    @staticmethod
    def load(config: Mapping[str, Any], allow: tuple[str, ...], snapshot: Reference) -> "TextModel":
        """The model that a configuration describes with a snapshot's weights: their moving average where there is one.

        Raises:
            StateMismatchError: the weights are of another model, or the data has no text.
            CheckpointError: the snapshot is missing or damaged.
        """
        data = component(config["data"], allow, "workers")
        if not hasattr(data, "encode"):
            raise StateMismatchError(f"{type(data).__name__} turns no text into tokens: there is nothing to generate")
        device = choose_device(config["launch"]["device"], 0)
        model = build_model({**config, **_PLAIN}, allow)
        update = None if snapshot.ref is None else snapshot.on_branch().update
        weights, commit = load_weights(snapshot.store.url, update, "average" if config["ema"] else "model")
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise StateMismatchError(f"the snapshot is of another model: {error}") from error
        return TextModel(model.to(device).eval(), data.encode, data.decode, commit.update)

    def tokens_of(self, prompt: str) -> list[int]:
        """The token ids of a prompt.

        Raises:
            StateMismatchError: it has none.
        """
        ids = [int(token) for token in self.encode(prompt)]
        if not ids:
            raise StateMismatchError("a prompt needs at least one token: there is nothing to continue")
        return ids
