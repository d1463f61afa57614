"""Who generates in the contest of generation: the same weights in the built-in decoder and in transformers' Llama.

Shapes: B sequences, T tokens of a prompt, N new tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.inference import Cache, Caching, Compiled, Layout, Sampling, generate
from gradwire.trainer.models import Decoder
from gradwire.trainer.models.hugging_face import hugging_face_layout

Contender = Callable[[Tensor, int], Tensor]  # prompts [B, T] and N to new tokens [B, N], the likeliest ones
GREEDY = Sampling(temperature=0.0)
OURS, ANEW = "gradwire", "gradwire, no cache"
DYNAMIC, STATIC = "transformers, dynamic", "transformers, static"
COMPILED = "gradwire, compiled"
STATIC_COMPILED = "transformers, static compiled"
THEIRS_ON_OURS = "transformers' model, gradwire"


def contenders(model: Decoder, compiled: bool = False) -> tuple[dict[str, Contender], dict[str, str]]:
    """Who takes part, compiled ones only where asked for, and why who does not."""
    own: dict[str, Contender] = {
        OURS: ours(model, Caching()),
        "gradwire, paged": ours(model, Caching(kind="paged")),
        "gradwire, int8": ours(model, Caching(precision="int8")),
    }
    if compiled:
        own[COMPILED] = ours(Compiled(model), Caching(kind="static"))
    try:
        llama = as_llama(model)
    except ImportError as error:
        return own, {name: str(error) for name in (DYNAMIC, STATIC, THEIRS_ON_OURS)}
    from gradwire.inference.transformers_cache import TransformersModel

    bridged = TransformersModel(llama)
    theirs: dict[str, Contender] = {
        DYNAMIC: _theirs(llama, None),
        STATIC: _theirs(llama, "static"),
        THEIRS_ON_OURS: ours(bridged, Caching()),
    }
    if compiled:
        theirs[STATIC_COMPILED] = _theirs(llama, "static", _compiling(llama))
    return own | theirs, {}


def ours(model: Any, caching: Caching) -> Contender:
    """The library on a model."""

    def run(prompt_BT: Tensor, new: int) -> Tensor:
        return torch.tensor([each.tokens for each in generate(model, prompt_BT, new, GREEDY, caching=caching)])

    return run


def as_llama(model: Decoder) -> nn.Module:
    """The decoder's weights in transformers' Llama, which computes the same.

    Raises:
        ImportError: transformers is missing.
    """
    from transformers import AutoModelForCausalLM, LlamaConfig

    layout, weights = hugging_face_layout(model), model.state_dict()
    auto: Any = AutoModelForCausalLM
    llama: nn.Module = auto.from_config(LlamaConfig(**layout.config))
    named = {}
    for name, rows in layout.names.items():
        tensor = weights[rows.source]
        pieces = tensor.view(-1, rows.period or len(tensor), *tensor.shape[1:])
        named[name] = pieces[:, rows.start : rows.stop].flatten(0, 1)
    missing = llama.load_state_dict(named, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}, missing
    return llama.to(model.embedding.weight.device).eval()


def _compiling(llama: nn.Module) -> Any:
    """How transformers compiles a step: as we do, but constant weights would make its count of tokens constant, too."""
    from transformers.generation.configuration_utils import CompileConfig

    cpu = next(llama.parameters()).device.type == "cpu"
    how: dict[str, Any] = {"mode": None, "options": {"cpp_wrapper": True}} if cpu else {}
    config: Any = CompileConfig(dynamic=False, **how)
    config._compile_all_devices = True  # by itself it does so on accelerators only
    return config


def _theirs(llama: Any, kind: str | None, compiling: Any = None) -> Contender:
    def run(prompt_BT: Tensor, new: int) -> Tensor:
        ids: Tensor = llama.generate(
            prompt_BT,
            attention_mask=torch.ones_like(prompt_BT),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            cache_implementation=kind,
            compile_config=compiling,
        )
        return ids[:, prompt_BT.shape[1] :]

    return run


class Concatenating(Cache):
    """What most libraries begin with: each step makes new tensors of all keys and values. For comparison only."""

    def __init__(self, layout: Layout, rows: int) -> None:
        super().__init__(layout, rows)
        self._held: list[tuple[Tensor, Tensor] | None] = [None] * layout.layers
        self._start = self._end = 0

    @property
    def nbytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in filter(None, self._held))

    @property
    def positions(self) -> Tensor:
        return torch.arange(self._start, self._end, device=self.layout.device).unsqueeze(0)

    def begin(self, tokens: int) -> None:
        self._start, self._end = self._end, self._end + tokens
        self._causal = tokens > 1
        if self.layout.rotation is not None:
            self._turn_to(self.layout.rotation.span(self._start, tokens))

    def update(self, layer: int, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        held = self._held[layer]
        new = (k_BKTE, v_BKTE) if held is None else (torch.cat([held[0], k_BKTE], 2), torch.cat([held[1], v_BKTE], 2))
        self._held[layer] = new
        return new

    def reset(self, rows: int) -> None:
        self.rows, self._held, self._start, self._end = rows, [None] * self.layout.layers, 0, 0

    def pad(self, padding_B: Tensor) -> None:
        raise NotImplementedError("the comparison has prompts of one length")

    def repeat(self, times: int) -> None:
        raise NotImplementedError("the comparison has one sample of each prompt")
