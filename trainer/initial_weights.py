"""`model.init`: a model starts from weights that there are."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from gradwire.checkpoint import load_weights
from gradwire.checkpoint.export import import_weights
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.launch.errors import RunNotFoundError
from gradwire.trainer.launch.run_directory import RunReference, split_update

log = logging.getLogger("gradwire")


def load_initial_weights(model: nn.Module, source: str) -> None:
    """Load weights by name; names that are missing or unexpected are listed.

    Args:
        model: The model.
        source: A run, a store, RUN@UPDATE, a folder in Hugging Face's layout, or a safetensors file.

    Raises:
        StateMismatchError: no name fits, a shape differs, or the folder holds another architecture.
        ModelError: a folder is given and the model has no such layout.
        CheckpointError: they cannot be read.
    """
    weights, where = _weights(model, source)
    own = model.state_dict()
    missing, unexpected = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if len(missing) == len(own):
        raise StateMismatchError(
            f"model.init={source}: none of its {len(weights)} tensors has a name of this model; it has "
            f"{', '.join(unexpected[:3])}, … and the model {', '.join(missing[:3])}, …"
        )
    shapes = [
        f"{name} is {tuple(weights[name].shape)} there and {tuple(own[name].shape)} here"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if shapes:
        raise StateMismatchError(f"model.init={source}: shapes differ: {'; '.join(sorted(shapes)[:5])}")
    model.load_state_dict(weights, strict=False)
    log.info("weights of %s", where)
    for label, names in (("missing there, freshly initialized", missing), ("not in this model, left out", unexpected)):
        if names:
            log.warning("model.init: %d tensors %s: %s", len(names), label, ", ".join(names))


def _weights(model: nn.Module, source: str) -> tuple[Mapping[str, Tensor], str]:
    """The weights by the model's names, and what to say of where they are from."""
    path = Path(source).expanduser()
    if path.suffix == ".safetensors" and path.is_file():
        return import_weights(path), str(path)
    if (path / "config.json").is_file():
        return _of_folder(model, path), str(path)
    try:
        run = RunReference.parse(source)
    except RunNotFoundError:
        url, update = split_update(source)
        weights, commit = load_weights(url, update)
        return weights, f"{url}, update {commit.clock['updates']}"
    from gradwire.trainer.checkpoint_export import merged_of

    weights, commit = load_weights(str(run.directory), run.update)
    return merged_of(run.directory, weights), f"{run.directory}, update {commit.clock['updates']}"


def _of_folder(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    from gradwire.trainer.models.hugging_face import differences, hugging_face_layout

    layout = hugging_face_layout(model)
    found = differences(model, json.loads((folder / "config.json").read_text("utf-8")))
    if found:
        raise StateMismatchError(f"model.init={folder} is another model: {'; '.join(found)}")
    return import_weights(folder, layout)
