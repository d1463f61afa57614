"""What a sweep is: its space and settings, and the command that each trial is. Kept in the sweep's folder."""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.trainer.config.errors import ConfigError, Mistake
from gradwire.trainer.config.overrides import read_overrides
from gradwire.trainer.config.sources import Sources
from gradwire.trainer.launch.run_directory import CONFIG
from gradwire.trainer.sweep import files
from gradwire.trainer.sweep.errors import ExecutorError, SweepExistsError, SweepNotFoundError
from gradwire.trainer.sweep.ladder import Ladder
from gradwire.trainer.sweep.objectives import Constraint, Objective, constraints_of, objectives_of
from gradwire.trainer.sweep.pruners import Pruner
from gradwire.trainer.sweep.samplers import Sampler
from gradwire.trainer.sweep.space import Space, restored
from gradwire.trainer.sweep.stage import WHOLE, Stage
from gradwire.trainer.sweep.trial import STORE, Trial

if TYPE_CHECKING:
    from gradwire.trainer.sweep.population import Population

FILE = "sweep.json"
_VERSION = 1  # of the file
_DEFAULT_TRIALS = 20
_LATER = ("trials", "parallel", "failures", "transfer")  # what may change when a sweep goes on


@dataclass(frozen=True)
class Definition:
    """A sweep.

    Args:
        directory: Its folder, absolute.
        study: Its name in the storage.
        section: The `sweep` section, checked.
        space: What is searched.
        overrides: What all trials have in common, as typed.
        config_dir: The user's folder of YAML, absolute.
        cwd: Where trials run.
        name: The trials' run.name, before their number.
        seed: The trials' run.seed, to which the number of a run is added.
        wandb: Whether the trials log to Weights & Biases without a group of their own.
        allow_targets: Packages that this command's user allows targets from.
    """

    directory: Path
    study: str
    section: Mapping[str, Any]
    space: Space
    overrides: tuple[str, ...]
    config_dir: str | None
    cwd: Path
    name: str
    seed: int
    wandb: bool
    allow_targets: tuple[str, ...] = ()

    @property
    def parallel(self) -> int:
        """Trials at once."""
        return int(self.section["parallel"])

    @property
    def seeds(self) -> int:
        """Runs of each trial."""
        return int(self.section["seeds"])

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What trials are judged by."""
        return objectives_of(self.section)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """Limits on metrics."""
        return constraints_of(self.section)

    def check_place(self) -> None:
        """Refuse a place where trials cannot run.

        Raises:
            ExecutorError: they cannot.
        """
        for folder, why in ((self.cwd, "where paths in its overrides begin"), (self.config_dir, "its own YAML")):
            if folder is not None and not Path(folder).is_dir():
                raise ExecutorError(
                    f"this sweep's trials need the folder {folder}, {why}, and it is not there: make it, or a link of "
                    "that name to where it is now"
                )
        self.component("executor").check()

    def reports_all_at_once(self, run_dir: Path) -> bool:
        """Whether a run's first evaluation shows all that its evaluations report: it has no callbacks to add any."""
        import yaml  # type: ignore[import-untyped]

        config = yaml.safe_load((run_dir / CONFIG).read_text()) or {}
        return not config.get("callbacks")

    def component(self, name: str) -> Any:
        """The sweep's `sampler`, `pruner` or `executor`, built; None where there is none."""
        from gradwire.trainer.config import instantiate

        node = self.section[name]
        return None if node is None else instantiate(node, self.allow_targets)

    def trials(self) -> int:
        """How many trials the sweep has altogether."""
        limit, wanted = self.component("sampler").limit(self.space), self.section["trials"]
        known = [number for number in (limit, wanted) if number is not None]
        ladder = self.ladder()
        return min(known) if known else _DEFAULT_TRIALS if ladder is None else ladder.trials

    def population(self) -> "Population | None":
        """The population whose generations the trials are, where they are some."""
        sampler: Sampler = self.component("sampler")
        return sampler.population()

    def ladder(self) -> Ladder | None:
        """The rungs at which trials wait, where there are some."""
        pruner: Pruner | None = self.component("pruner")
        return None if pruner is None else pruner.ladder()

    def trial(self, number: int) -> Trial:
        """A trial's folder."""
        return Trial.of(self.directory, number, self.seeds)

    def overrides_of(self, trial: Trial, values: Mapping[str, Any], run: int, stage: Stage = WHOLE) -> list[str]:
        """The overrides that a run of a trial is launched with for a part of it."""
        suffix = f"{trial.number}" if self.seeds == 1 else f"{trial.number}-{run}"
        own = [f"run.dir={quoted(str(trial.runs[run]))}", f"run.name={quoted(f'{self.name}-{suffix}')}"]
        if self.seeds > 1:
            own.append(f"run.seed={self.seed + run}")
        if stage.stop_at is not None:
            own.append(f"run.stop_at={stage.stop_at}")
        if self.wandb:
            own.append(f"logger.wandb.group={quoted(self.study)}")
        if self.allow_targets:
            own.append(f"allow_targets=[{','.join(map(quoted, self.allow_targets))}]")
        return [*self.overrides, *self.space.overrides(values), *own]

    def inherit(self, parent: Path, run_dir: Path) -> None:
        """Let a run that has not begun go on from where another one ended.

        Raises:
            CheckpointError: that one's checkpoint cannot be copied.
        """
        from gradwire.checkpoint.commits import CommitLog
        from gradwire.checkpoint.fork import fork
        from gradwire.checkpoint.store import Store

        store = Store.open(str(run_dir / STORE))
        if CommitLog(store).history().newest is None:
            fork(Store.open(str(parent / STORE)), store)

    def samples(self, run_dir: Path, stage: Stage = WHOLE) -> int:
        """The samples that a run has seen at the end of a part; of its whole plan where that is its end."""
        import yaml

        from gradwire.trainer.plan_table import planned

        config = yaml.safe_load((run_dir / CONFIG).read_text())
        return planned(config, self.allow_targets).plan.to_samples(stage.stop_at or "100%")

    def write(self) -> None:
        """Begin the sweep: make its folder, and write the definition there unless another one is there.

        Raises:
            SweepExistsError: the folder holds a sweep.
            UnwritableError: nothing can be written there.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        temporary = self.directory / f".new-{FILE}.{os.getpid()}"
        files.write(temporary, json.dumps(self._record(), indent=2) + "\n")
        try:
            os.link(temporary, self.directory / FILE)
        except FileExistsError as error:
            raise SweepExistsError(
                f"sweep.dir={self.directory} already holds a sweep: continue it, or help another process with it, by "
                f"`gradwire sweep --resume {self.directory}`, or choose another folder."
            ) from error
        finally:
            temporary.unlink()

    def keep(self) -> None:
        """Write the definition over the one that is there: it was changed."""
        files.write(self.directory / FILE, json.dumps(self._record(), indent=2) + "\n")

    def _record(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "study": self.study,
            "overrides": list(self.overrides),
            "space": self.space.written(),
            "sweep": {key: value for key, value in self.section.items() if key not in ("space", "dir")},
            "config_dir": self.config_dir,
            "cwd": str(self.cwd),
            "name": self.name,
            "seed": self.seed,
            "wandb": self.wandb,
        }

    @staticmethod
    def read(directory: Path) -> "Definition":
        """The sweep in a folder.

        Raises:
            SweepNotFoundError: there is none, or its file is damaged.
            ConfigError: what it says is not allowed or not right.
        """
        path = directory / FILE
        try:
            record = json.loads(path.read_text())
            if record["version"] != _VERSION:
                raise SweepNotFoundError(
                    f"{path} is of version {record['version']} and this gradwire reads {_VERSION}: use the newer one"
                )
            space, mistakes = restored(record["space"], Sources(folder=_folder(record["config_dir"])))
            if mistakes:
                raise ConfigError(mistakes)
            if record["sweep"]["sampler"] is None or not record["sweep"]["objective"]:
                raise KeyError("sampler or objective")
            return Definition(
                directory=directory.resolve(),
                study=str(record["study"]),
                section=checked({**record["sweep"], "dir": str(directory)}, str(path)),
                space=space,
                overrides=tuple(map(str, record["overrides"])),
                config_dir=record["config_dir"],
                cwd=Path(record["cwd"]),
                name=str(record["name"]),
                seed=int(record["seed"]),
                wandb=bool(record["wandb"]),
            )
        except FileNotFoundError as error:
            raise SweepNotFoundError(f"No sweep {str(directory)!r}: it holds no {FILE}.") from error
        except ConfigError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SweepNotFoundError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def changed(self, overrides: Sequence[str]) -> "Definition":
        """The same sweep with overrides of a resuming command.

        Raises:
            ConfigError: an override is wrong, or changes what cannot change any more.
        """
        read, mistakes = read_overrides(overrides, Sources(folder=_folder(self.config_dir)))
        section, allow = dict(self.section), self.allow_targets
        for override in read:
            name = override.key.removeprefix("sweep.")
            if override.key == "allow_targets" and isinstance(override.value, list):
                allow = tuple(map(str, override.value))
            elif override.kind == "value" and name in _LATER and override.key != name:
                section[name] = override.value
            else:
                message = (
                    "cannot change in a sweep that has begun: its trials would not belong together; what can is "
                    f"{', '.join(f'sweep.{each}' for each in _LATER)} and allow_targets"
                )
                mistakes.append(Mistake(override.key, override.place, message))
        if mistakes:
            raise ConfigError(mistakes)
        return replace(self, section=checked(section, "", allow), allow_targets=allow)


def checked(section: Mapping[str, Any], where: str, allow_targets: Sequence[str] = ()) -> dict[str, Any]:
    """A `sweep` section that was read back, if it is right.

    Raises:
        ConfigError: it is not.
    """
    from gradwire.trainer.config.checker import Checker
    from gradwire.trainer.config.schema import SweepSection

    value, faults = Checker(allow_targets).section(section, SweepSection, "sweep")
    if faults:
        raise ConfigError([Mistake(each.key, where, each.message, each.suggestion) for each in faults])
    return dict(value)


def fresh_name(directory: Path) -> str:
    """A name for a new sweep's study: its folder's, and something that no other sweep has."""
    return f"{directory.resolve().name}-{secrets.token_hex(4)}"


def quoted(text: str) -> str:
    """A text as an override's value, whatever is in it."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text, Quote.single).with_quotes()


def of_sweep(key: str) -> bool:
    """Whether a key belongs to the sweep."""
    return key == "sweep" or key.startswith(("sweep.", "sweep/"))


def _folder(config_dir: str | None) -> Path | None:
    return None if config_dir is None else Path(config_dir)
