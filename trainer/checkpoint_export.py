"""`gradwire checkpoint export`: a snapshot's weights as a safetensors file or as a Hugging Face folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradwire.checkpoint.export import HuggingFace, export, export_weights, read_weights
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.launch.run_directory import CONFIG

if TYPE_CHECKING:
    from gradwire.trainer.adapters import Adapter


def export_to(
    url: str, update: int | None, run: Path | None, target: Path, *, adapter_alone: bool = False
) -> tuple[Path, ...]:
    """Write the weights; the files. Of a run with an adapter the sums of base and adapter.

    Args:
        url: The store.
        update: Which snapshot; None for the newest whole one.
        run: The run directory that the store belongs to, whose configuration describes the model; a folder needs it.
        target: OUT.safetensors, or a folder in Hugging Face's layout.
        adapter_alone: Whether the adapter goes into a folder of peft's layout, without its base.

    Raises:
        StateMismatchError: a folder is asked for and there is no run directory, or an adapter and the run has none.
        ModelError: Hugging Face's libraries have no such model.
        CheckpointError: as of `gradwire.checkpoint.export.export`.
    """
    file = target.suffix == ".safetensors"
    if run is None and (adapter_alone or not file):
        raise StateMismatchError(
            f"{url} does not say which model its weights are of: name the run directory instead, or export "
            f"{target}.safetensors"
        )
    adapted = run is not None and bool(_read(run).get("adapter"))
    if adapter_alone and not adapted:
        raise StateMismatchError(f"{run} trained the model itself, without an adapter: leave --adapter out")
    if run is None or not adapted:
        return export(url, update, target, None if file or run is None else layout_of(run))
    weights, reached = read_weights(url, update)
    about = {"update": str(reached)}
    if adapter_alone:
        from gradwire.trainer.adapter_files import export_adapter

        return export_adapter(_model(run), _adapter(run), weights, target, about)
    return export_weights(merged_of(run, weights), target, None if file else layout_of(run), about=about)


def layout_of(run: Path) -> HuggingFace:
    """The Hugging Face layout of the model that a run's configuration describes; its weights are not made."""
    from gradwire.trainer.exported_files import files_beside
    from gradwire.trainer.models.hugging_face import hugging_face_layout

    config, model = _read(run), _model(run)
    return replace(hugging_face_layout(model), files=files_beside(config, model, _allowed(config)))


def merged_of(run: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a run by the names of its model: where it trains an adapter, that is added to its base."""
    if not _read(run).get("adapter"):
        return dict(weights)
    from gradwire.trainer.adapters import merged

    return merged(_model(run), _adapter(run), weights)


def _read(run: Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    config: dict[str, Any] = yaml.safe_load((run / CONFIG).read_text())
    return config


def _allowed(config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(config.get("allow_targets") or ())


def _model(run: Path) -> nn.Module:
    from gradwire.trainer.assemble import component

    config = _read(run)
    # transformers does not read a saved model onto the meta device
    with torch.device("cpu" if config["model"].get("path") else "meta"):
        model: nn.Module = component(config["model"], _allowed(config), "init")
    return model


def _adapter(run: Path) -> "Adapter":
    from gradwire.trainer.assemble import component

    config = _read(run)
    adapter: Adapter = component(config["adapter"], _allowed(config), "init")
    return adapter
