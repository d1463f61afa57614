"""Adapters in files of their own, as peft reads them; the base that they belong to is named by a digest."""

from collections.abc import Mapping
from pathlib import Path

import xxhash
from torch import Tensor, nn

from gradwire.checkpoint.export import HuggingFace, Rows, export_weights
from gradwire.checkpoint.safetensors_files import read_files, read_header_texts
from gradwire.checkpoint.tensors import pieces
from gradwire.trainer.adapters import Adapter
from gradwire.trainer.errors import AdapterError
from gradwire.trainer.models.hf_causal_lm import HFCausalLM

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model"
_BASE = "gradwire_base_xxh3"
_PEFT = "base_model.model."  # before every name in peft's files
_CHUNK = 16 * 2**20


def base_digest(weights: Mapping[str, Tensor]) -> str:
    """The xxh3-128 of the tensors that are no adapter's, by name: 32 hexadecimal digits.

    Args:
        weights: Of a model with or without an adapter.
    """
    whole = xxhash.xxh3_128()
    frozen = {name.replace(".base_layer.", "."): each for name, each in weights.items() if not is_adapters(name)}
    for name, tensor in sorted(frozen.items()):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        for piece in pieces(tensor, _CHUNK):
            whole.update(piece)
    return whole.hexdigest()


def is_adapters(name: str) -> bool:
    """Whether a tensor of this name is an adapter's."""
    return ".lora_" in name


def export_adapter(
    model: nn.Module, adapter: Adapter, weights: Mapping[str, Tensor], folder: Path, about: Mapping[str, str]
) -> tuple[Path, ...]:
    """Write an adapter alone, as a folder that peft loads onto its base; the files.

    Args:
        model: As it is without the adapter; the meta device is enough.
        adapter: The adapter.
        weights: By the names of the model with the adapter.
        folder: A folder that is to be.
        about: Texts for the header.

    Raises:
        ExportError: the folder exists.
    """
    config = adapter.describe(model)
    targets = [_inner(model, name) for name in config["target_modules"]]
    alone = {name: tensor for name, tensor in weights.items() if is_adapters(name)}
    names = {_PEFT + _inner(model, _plain(name)): Rows(name) for name in alone}
    described = {**config, "target_modules": targets, "inference_mode": True}
    layout = HuggingFace(names, described, stem=WEIGHTS, config_name=CONFIG)
    return export_weights(alone, folder, layout, about={**about, _BASE: base_digest(weights)})


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Give a model with an adapter the adapter's values from a folder that `export_adapter` wrote.

    Raises:
        AdapterError: there is none, it is another one, or it belongs to another base.
        ExportError: the files cannot be read.
    """
    path = folder / f"{WEIGHTS}.safetensors"
    if not path.is_file():
        raise AdapterError(
            f"adapter.init={folder} holds no {path.name}: `gradwire checkpoint export --adapter` writes it"
        )
    own = model.state_dict()
    names = {_PEFT + _inner(model, _plain(name)): name for name in own if is_adapters(name)}
    found = read_files(path)
    if found.keys() != names.keys() or any(found[name].shape != own[names[name]].shape for name in found):
        raise AdapterError(
            f"adapter.init={folder} is another adapter: it has {len(found)} tensors for rank, targets or model of its "
            f"own, and here are {len(names)}: set adapter.rank and adapter.targets as it was trained"
        )
    expected, here = read_header_texts(path).get(_BASE), base_digest(own)
    if expected != here:
        raise AdapterError(
            f"adapter.init={folder} belongs to a base with the digest {expected}, and this model's is {here}: give the "
            "model that it was trained on (model.init, model.path or run.seed)"
        )
    model.load_state_dict({names[name]: tensor for name, tensor in found.items()}, strict=False)


def _plain(name: str) -> str:
    """A tensor's name without peft's name of the adapter; lengths are no modules in its files."""
    return name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default.", ".")


def _inner(model: nn.Module, name: str) -> str:
    """A name within the model that peft is given: that of transformers, not what wraps it."""
    return name.removeprefix("model.") if isinstance(model, HFCausalLM) else name
