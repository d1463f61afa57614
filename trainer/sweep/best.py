"""The best configuration of a sweep as an experiment: YAML that `gradwire train` takes as it is."""

import os
from pathlib import Path
from typing import Any

from gradwire.trainer.config import to_yaml
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.launch.run_directory import CONFIG
from gradwire.trainer.sweep.definition import Definition
from gradwire.trainer.sweep.ledger import Ledger
from gradwire.trainer.sweep.standing import number

FOLDER = "best"  # a configuration folder of its own: what else is in the sweep's is none
_OURS = ("sweep", "allow_targets")  # a stored configuration cannot allow itself anything


def write_best(definition: Definition, ledger: Ledger) -> list[Path]:
    """Write the best trial's configuration as best/experiment/best.yaml in the sweep's folder.

    With several objectives each trial that no other one dominates has a file, trial-<number>.yaml. A population has
    none: no single configuration trains what came of it.

    Returns:
        The files.
    """
    folder = definition.directory / FOLDER / "experiment"
    written = []
    for trial in ledger.best() if definition.population() is None else []:
        name = "best.yaml" if len(ledger.objectives) == 1 else f"trial-{trial.number}.yaml"
        values = zip(ledger.objectives, trial.values or (), strict=True)
        told = ", ".join(f"{objective.metric} {number(value)}" for objective, value in values)
        comment = f"Trial {trial.number} of the sweep {definition.study}: {told}."
        _write(folder / name, _experiment(definition, trial.number, comment))
        written.append(folder / name)
    for stale in set(folder.glob("*.yaml")) - set(written):
        stale.unlink(missing_ok=True)  # another process may have
    return written


def _experiment(definition: Definition, trial: int, comment: str) -> str:
    """The whole configuration in place of the config groups' options, so that nothing else need be the same."""
    config = _config(definition, trial)
    groups = sorted(name for name in Sources().groups() if "/" not in name and name != "experiment")
    defaults = "".join(f"  - override /{name}: null\n" for name in groups)
    return f"# @package _global_\n# {comment}\ndefaults:\n{defaults}\n{to_yaml(config)}"


def _config(definition: Definition, trial: int) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    stored = yaml.safe_load((definition.trial(trial).runs[0] / CONFIG).read_text())
    config = {key: value for key, value in stored.items() if key not in _OURS}
    config["run"] = {**config["run"], "name": definition.name, "dir": None, "seed": definition.seed, "stop_at": None}
    if definition.wandb:
        config["logger"]["wandb"]["group"] = None
    return config


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
