"""What the caches need to know of a transformers model, from its configuration. transformers is not imported."""

from typing import Any

from torch import nn

from gradwire.inference.errors import UnsuitedModelError
from gradwire.inference.model import Layout
from gradwire.inference.rotation import Rotation

_STEADY = ("default", "linear", "llama3", "yarn")  # kinds of rotary positions whose frequencies never change


def check_suited(model: nn.Module) -> None:
    """Refuse models that do not simply attend to all earlier tokens.

    Raises:
        UnsuitedModelError: the model's attention is of another kind.
    """
    config = config_of(model)
    kinds = set(getattr(config, "layer_types", None) or [_kind(config)])
    if kinds != {"full_attention"} or getattr(config, "is_encoder_decoder", False):
        raise UnsuitedModelError(
            f"{type(model).__name__} has layers of kind {', '.join(sorted(kinds))}; only full attention over one "
            "stream of tokens can be cached here: compute every token again (cache='none')"
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        raise UnsuitedModelError(
            f"attention must be computed by sdpa or eager, found {config._attn_implementation!r}: call "
            "model.set_attn_implementation('sdpa')"
        )


def _kind(config: Any) -> str:
    window, context = getattr(config, "sliding_window", None), getattr(config, "max_position_embeddings", None)
    return "full_attention" if window is None or (context is not None and window >= context) else "sliding_attention"


def layout_of(model: nn.Module) -> Layout:
    """What a transformers model keeps of each token, from its configuration."""
    config, weight = config_of(model), next(model.parameters())
    rotation = _rotation_of(model)
    return Layout(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        dtype=weight.dtype,
        device=weight.device,
        context=getattr(config, "max_position_embeddings", None),
        rotation=rotation,
        # Without steady frequencies a model may keep those of a call.
        forgets=rotation is not None and all(type(each) is nn.Parameter for each in model.parameters()),
    )


def _rotation_of(model: nn.Module) -> Rotation | None:
    """By the model's own frequencies, if all of a head is turned and they never change."""
    config = config_of(model)
    rotary: Any = next((each for name, each in model.named_modules() if name.endswith("rotary_emb")), None)
    frequencies = getattr(rotary, "inv_freq", None)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if frequencies is None or 2 * len(frequencies) != width or getattr(rotary, "rope_type", None) not in _STEADY:
        return None
    return Rotation(frequencies)


def config_of(model: nn.Module) -> Any:
    """The configuration of a model's text part."""
    config: Any = model.config
    return config.get_text_config()
