"""The best configuration of a sweep as an experiment: YAML that `gradwire train` takes as it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.trainer.config import to_yaml
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.launch.run_directory import CONFIG
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.errors import DamagedSweepError
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.standing import number
from gradwire.trainer.sweep.transfer import Prediction, predicted

FOLDER = "best"  # a configuration folder of its own: what else is in the sweep's is none
_OURS = ("sweep", "allow_targets")  # a stored configuration cannot allow itself anything


@dataclass(frozen=True)
class Best:
    """The experiment of a best trial.

    Args:
        file: Where it is.
        prediction: What a large configuration was predicted to need, where it is one; None for the trial's own.
    """

    file: Path
    prediction: Prediction | None = None


def write_best(definition: Definition, ledger: Ledger) -> list[Best]:
    """Write the best trial's configuration as best/experiment/best.yaml in the sweep's folder.

    With several objectives each trial that no other one dominates has a file, trial-<number>.yaml. What
    `sweep.transfer` makes of one lies beside it, as …-transferred.yaml. A population has none: no single configuration
    trains what came of it.

    Raises:
        ConfigError: what `sweep.transfer` asks for is wrong.
    """
    folder = definition.directory / FOLDER / "experiment"
    written = []
    for trial in ledger.best() if definition.population() is None else []:
        name = "best" if len(ledger.objectives) == 1 else f"trial-{trial.number}"
        values = zip(ledger.objectives, trial.values or (), strict=True)
        told = ", ".join(f"{objective.metric} {number(value)}" for objective, value in values)
        source = f"Trial {trial.number} of the sweep {definition.study}"
        written.append(Best(folder / f"{name}.yaml"))
        _write(written[-1].file, _experiment(_stored(definition, trial.number), f"{source}: {told}."))
        if (large := predicted(definition, ledger.space.exact(trial.params))) is not None:
            written.append(Best(folder / f"{name}-transferred.yaml", large))
            _write(written[-1].file, _experiment(large.config, f"{source}, transferred: {large}."))
    for stale in set(folder.glob("*.yaml")) - {each.file for each in written}:
        stale.unlink(missing_ok=True)  # another process may have
    return written


def _write(path: Path, text: str) -> None:
    """Write what is not there yet: a finished sweep may lie where nothing can be written."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, text)


def _experiment(config: Mapping[str, Any], comment: str) -> str:
    """The whole configuration in place of the config groups' options, so that nothing else need be the same."""
    groups = sorted(name for name in Sources().groups() if "/" not in name and name != "experiment")
    defaults = "".join(f"  - override /{name}: null\n" for name in groups)
    kept = {key: value for key, value in config.items() if key not in _OURS}
    return f"# @package _global_\n# {comment}\ndefaults:\n{defaults}\n{to_yaml(kept)}"


def _stored(definition: Definition, trial: int) -> dict[str, Any]:
    """A trial's configuration as that of a run of its own."""
    import yaml  # type: ignore[import-untyped]

    path = definition.trial(trial).runs[0] / CONFIG
    try:
        config: dict[str, Any] = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise DamagedSweepError(f"trial {trial} is the best, and its configuration is gone: {path}") from error
    config["run"] |= {"name": definition.name, "dir": None, "seed": definition.seed, "stop_at": None}
    if definition.wandb:
        config["logger"]["wandb"]["group"] = None
    return config
