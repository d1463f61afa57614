"""`model.init`: a model starts from another run's weights."""

import logging

from torch import nn

from gradwire.checkpoint import load_weights
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.launch.errors import RunNotFoundError
from gradwire.trainer.launch.run_directory import RunReference, split_update

log = logging.getLogger("gradwire")


def load_initial_weights(model: nn.Module, source: str) -> None:
    """Load weights by name from a run, a store or RUN@UPDATE; names that are missing or unexpected are listed.

    Raises:
        StateMismatchError: no name fits, or a shape differs.
    """
    url, update = _located(source)
    weights, commit = load_weights(url, update)
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
    log.info("weights of %s, update %s", url, commit.clock["updates"])
    for label, names in (("missing there, freshly initialized", missing), ("not in this model, left out", unexpected)):
        if names:
            log.warning("model.init: %d tensors %s: %s", len(names), label, ", ".join(names))


def _located(source: str) -> tuple[str, int | None]:
    """A store's URL, or the folder of a run that is named as on the command line, and the update."""
    try:
        run = RunReference.parse(source)
    except RunNotFoundError:
        return split_update(source)
    return str(run.directory), run.update
