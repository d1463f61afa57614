"""`gradwire checkpoint export`: a snapshot's weights as a safetensors file or as a Hugging Face folder."""

from pathlib import Path

import torch
from torch import nn

from gradwire.checkpoint.export import HuggingFace, export
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.launch.run_directory import CONFIG


def export_to(url: str, update: int | None, run: Path | None, target: Path) -> tuple[Path, ...]:
    """Write the weights; the files.

    Args:
        url: The store.
        update: Which snapshot; None for the newest whole one.
        run: The run directory that the store belongs to, whose configuration describes the model; a folder needs it.
        target: OUT.safetensors, or a folder in Hugging Face's layout.

    Raises:
        StateMismatchError: a folder is asked for and there is no run directory.
        ModelError: Hugging Face's libraries have no such model.
        CheckpointError: as of `gradwire.checkpoint.export.export`.
    """
    if target.suffix == ".safetensors":
        return export(url, update, target)
    if run is None:
        raise StateMismatchError(
            f"{url} does not say which model its weights are of: name the run directory instead, or export "
            f"{target}.safetensors"
        )
    return export(url, update, target, layout_of(run))


def layout_of(run: Path) -> HuggingFace:
    """The Hugging Face layout of the model that a run's configuration describes; its weights are not made."""
    from gradwire.trainer.models.hugging_face import hugging_face_layout

    return hugging_face_layout(_model(run))


def _model(run: Path) -> nn.Module:
    import yaml  # type: ignore[import-untyped]

    from gradwire.trainer.assemble import component

    config = yaml.safe_load((run / CONFIG).read_text())
    # transformers does not read a saved model onto the meta device
    with torch.device("cpu" if config["model"].get("path") else "meta"):
        model: nn.Module = component(config["model"], tuple(config.get("allow_targets") or ()), "init")
    return model
