"""Low-rank additions to a model's linear layers, which are trained in its stead: by peft."""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor, nn

from gradwire.trainer.config.range import Range
from gradwire.trainer.errors import AdapterError, MissingPackageError


class Adapter(Protocol):
    """Puts layers into a model that are trained instead of it."""

    def apply(self, model: nn.Module) -> None:
        """Freeze the model and put the trained layers in, in place."""
        ...

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """What peft's adapter_config.json says of it, for a model as it was before."""
        ...


class LoRA:
    """Low-rank additions to frozen matrices, W + (alpha/rank)·B·A with B = 0 at first (Hu 2021, arXiv 2106.09685).

    Args:
        rank: Rank of the additions.
        alpha: What they are scaled by, over the rank.
        dropout: Probability of dropping an input of the additions while training.
        targets: Shell-style patterns of the linear layers that get some, by full name (`*.grouped_qkv`); null takes
            all but the output projection.

    Raises:
        MissingPackageError: peft is not installed.
    """

    decomposed = False

    def __init__(
        self,
        rank: Annotated[int, Range(ge=1)] = 8,
        alpha: Annotated[float, Range(gt=0)] = 16.0,
        dropout: Annotated[float, Range(ge=0, lt=1)] = 0.0,
        targets: list[str] | None = None,
    ) -> None:
        _peft()
        self.rank, self.alpha, self.dropout, self.targets = rank, alpha, dropout, targets

    def apply(self, model: nn.Module) -> None:
        """Freeze the model and put the additions in, in place; their first values are drawn from torch's generator.

        Raises:
            AdapterError: a pattern matches no linear layer.
        """
        names = chosen(model, self.targets)
        on_meta = any(parameter.is_meta for parameter in model.parameters())
        _peft().inject_adapter_in_model(self._config(model, names), model, low_cpu_mem_usage=on_meta)

    def describe(self, model: nn.Module) -> dict[str, Any]:
        """What peft's adapter_config.json says of it, for a model as it was before."""
        config = self._config(model, chosen(model, self.targets)).to_dict()
        return {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}

    def _config(self, model: nn.Module, names: Sequence[str]) -> Any:
        return _peft().LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=list(names),
            fan_in_fan_out=all(_is_transposed(model.get_submodule(name)) for name in names),
            use_dora=self.decomposed,
        )


class DoRA(LoRA):
    """LoRA whose sums' rows have a trained length, apart from their direction (Liu 2024, arXiv 2402.09353).

    Args:
        rank: Rank of the additions.
        alpha: What they are scaled by, over the rank.
        dropout: Probability of dropping an input of the additions while training.
        targets: Shell-style patterns of the linear layers that get some, by full name; null takes all but the output
            projection.
    """

    decomposed = True

    def __init__(
        self,
        rank: Annotated[int, Range(ge=1)] = 8,
        alpha: Annotated[float, Range(gt=0)] = 16.0,
        dropout: Annotated[float, Range(ge=0, lt=1)] = 0.0,
        targets: list[str] | None = None,
    ) -> None:
        super().__init__(rank, alpha, dropout, targets)


def chosen(model: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    """The linear layers that match a pattern; without patterns all but the output projection.

    Raises:
        AdapterError: a pattern matches none, or there are none.
    """
    names = list(_linear_layers(model))
    if patterns is None:
        heads = _heads(model)
        names = [name for name in names if model.get_submodule(name) not in heads]
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise AdapterError(f"adapter.targets: no linear layer matches {pattern!r}; names look like {names[:4]}")
    if not names:
        raise AdapterError(f"{type(model).__name__} has no linear layers for an adapter")
    return [name for name in names if patterns is None or any(fnmatch.fnmatchcase(name, each) for each in patterns)]


def trained(model: nn.Module) -> tuple[int, int]:
    """How many parameters of a model are trained, and how many there are."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trains in sizes if trains), sum(size for size, _ in sizes)


def merged(model: nn.Module, adapter: Adapter, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model with an adapter as those of the model alone: its additions are added in.

    Args:
        model: As it is without the adapter, perhaps on the meta device. It holds the weights afterwards.
        adapter: The adapter.
        weights: By the names of the model with the adapter; additions are made in their memory.

    Raises:
        AdapterError: they are of another model or adapter.
    """
    from peft.tuners.lora import LoraLayer

    adapter.apply(model)
    try:
        model.load_state_dict(dict(weights), assign=True)
    except RuntimeError as error:
        raise AdapterError(f"the weights are of another model or adapter: {error}") from error
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)]
    with torch.no_grad():
        for name, layer in layers:
            layer.merge()
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, layer.get_base_layer())
    return model.state_dict()


def _linear_layers(model: nn.Module) -> Iterator[str]:
    """The names of linear layers, transposed ones of transformers (GPT-2's) among them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) or _is_transposed(module):
            yield name


def _is_transposed(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D"


def _heads(model: nn.Module) -> list[nn.Module]:
    """The projections onto the vocabulary: tied with the embedding, or as large."""
    inner: Any = getattr(model, "model", None)
    found = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else getattr(model, "output", None)
    return [found] if isinstance(found, nn.Module) else []


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingPackageError("adapters need the peft package: pip install 'gradwire[peft]'") from error
    return peft
