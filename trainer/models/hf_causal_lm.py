"""Any causal language model of transformers, from a configuration or a local folder."""

import difflib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.inference import Cache, Layout
from gradwire.inference.transformers_models import check_suited, layout_of
from gradwire.trainer.models.errors import ModelError


class HFCausalLM(nn.Module):
    """A transformers causal language model as a plain module: token ids in, logits out.

    Args:
        model_type: Architecture by transformers' name (`llama`, `gpt2`, `qwen3`, …), with fresh weights.
        config: Fields of that architecture's configuration that differ from its defaults.
        path: Local folder with a saved model (configuration and safetensors weights), instead of `model_type`.

    Raises:
        ModelError: transformers is missing, neither or both of `model_type` and `path` are given, the architecture or
            a field of its configuration does not exist, or the folder holds no model.
    """

    default_loss = "next_token"

    def __init__(
        self, model_type: str | None = None, config: dict[str, Any] | None = None, path: str | None = None
    ) -> None:
        super().__init__()
        if (model_type is None) == (path is None):
            raise ModelError(f"give either model_type or path, found model_type={model_type!r} and path={path!r}")
        self.model: nn.Module = (
            _from_config(model_type, config or {}) if model_type else _from_folder(str(path), config)
        )
        settings: Any = self.model.config
        settings.use_cache = False
        self.vocabulary: int = settings.vocab_size
        self.context: int = getattr(settings, "max_position_embeddings", 0) or 2**31

    def forward(self, ids_BT: Tensor, positions_BT: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Logits [B, T, V] of token ids [B, T]; with a cache, which holds those before, the last one's alone [B, 1, V].

        Args:
            ids_BT: The tokens.
            positions_BT: Where rows hold several documents, each token's position in its own; transformers keeps them
                apart by that. Without, a row is one document.
            cache: Keys and values of the tokens before, which says their positions.

        Raises:
            CacheFullError: more tokens than the cache holds.
        """
        if cache is not None:
            from gradwire.inference.transformers_cache import continue_from  # imports transformers

            return continue_from(self.model, ids_BT, cache)
        logits_BTV: Tensor = self.model(input_ids=ids_BT, position_ids=positions_BT).logits
        return logits_BTV

    def kv_layout(self) -> Layout:
        """What it keeps of each token for generation.

        Raises:
            UnsuitedModelError: not all of its layers attend to all earlier tokens.
        """
        check_suited(self.model)
        return layout_of(self.model)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError("model=hf_causal_lm needs transformers: pip install 'gradwire[hf]'") from error
    return transformers


def _from_config(model_type: str, fields: dict[str, Any]) -> nn.Module:
    transformers = _transformers()
    try:
        config = transformers.AutoConfig.for_model(model_type)
    except ValueError as error:
        raise ModelError(f"transformers has no architecture {model_type!r}; llama, gpt2 and qwen3 are some") from error
    unknown = sorted(name for name in fields if not hasattr(config, name))
    if unknown:
        raise ModelError("; ".join(_no_field(model_type, name, list(config.to_dict())) for name in unknown))
    try:
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **fields)
        )
    except ValueError as error:
        raise ModelError(f"transformers builds no causal language model of type {model_type}: {error}") from error
    return model


def _no_field(model_type: str, name: str, fields: list[str]) -> str:
    nearest = difflib.get_close_matches(name, fields, 1)
    return f"the configuration of {model_type} has no field {name}" + (
        f", did you mean {nearest[0]}?" if nearest else ""
    )


def _from_folder(path: str, fields: dict[str, Any] | None) -> nn.Module:
    if fields:
        raise ModelError("config belongs to model_type: a saved model has its own configuration")
    if not (Path(path) / "config.json").exists():
        raise ModelError(f"{path} holds no transformers model: there is no config.json")
    model: nn.Module = _transformers().AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
    )
    return model
