"""The ledger of a sweep: an Optuna study in which each trial has its number, its values and its result.

What a trial did is in its folder; the ledger says which numbers there are, and is what samplers and pruners look at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gradwire.trainer.sweep.ladder import Climb
from gradwire.trainer.sweep.objectives import Constraint, Objective
from gradwire.trainer.sweep.population import AGE
from gradwire.trainer.sweep.result import Result
from gradwire.trainer.sweep.samplers import Asked, Sampler
from gradwire.trainer.sweep.space import Space
from gradwire.trainer.sweep.storage import open_storage, reachable, shown

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

_RUNGS = "rungs"  # an attribute of trials that were judged on the way: their values at each rung
_CLIMBS: Mapping[str, Literal["open", "pruned"]] = {"RUNNING": "open", "PRUNED": "pruned"}


@dataclass(frozen=True)
class Ledger:
    """The study of a sweep.

    Args:
        study: Optuna's.
        storage: Where it is kept.
        place: How messages name that.
        space: What is searched.
        objectives: What trials are judged by.
        constraints: Limits on metrics.
    """

    study: "Study"
    storage: "BaseStorage"
    place: str
    space: Space
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...]

    @classmethod
    def open(
        cls,
        directory: Path,
        url: str | None,
        name: str,
        space: Space,
        objectives: Sequence[Objective],
        constraints: Sequence[Constraint],
    ) -> "Ledger":
        """Open the study of this name, or begin it.

        Raises:
            MissingPackageError: Optuna is not installed.
            StorageError: the storage cannot be used.
            DamagedSweepError: the journal cannot be read.
        """
        storage, place = open_storage(directory, url), shown(directory, url)
        import optuna

        with reachable(place):
            try:
                study = optuna.load_study(storage=storage, study_name=name)  # which writes nothing
            except KeyError:
                directions = [each.direction for each in objectives]
                study = optuna.create_study(
                    storage=storage, study_name=name, directions=directions, load_if_exists=True
                )
        return cls(study, storage, place, space, tuple(objectives), tuple(constraints))

    def trials(self) -> "list[FrozenTrial]":
        """All trials, by number."""
        with reachable(self.place):
            return self.study.get_trials(deepcopy=False)

    def trial(self, number: int) -> "FrozenTrial":
        """One trial."""
        with reachable(self.place):
            return self.storage.get_trial(self._id(number))

    def _id(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)

    def create(self) -> int:
        """Begin a trial that has no values yet: its number, which nobody else gets."""
        with reachable(self.place):
            identity = self.storage.create_new_trial(self.study._study_id)
            return self.storage.get_trial_number_from_id(identity)

    def fill(self, number: int, sampler: Sampler, seed: int) -> dict[str, Any]:
        """The values of a trial: those it has, or else the sampler's choice, which is written down.

        One process at a time may do this for a sweep, or samplers would see trials that are half there.
        """
        trial = self.trial(number)
        if set(trial.params) == {each.key for each in self.space.parameters}:
            return self.space.exact(trial.params)
        with reachable(self.place):
            proposal = sampler.propose(Asked(self.space, self.study, trial, seed))
            for name, note in proposal.notes.items():
                self.storage.set_trial_user_attr(self._id(number), name, note)
            for each in self.space.parameters:
                distribution, value = each.domain.distribution(), proposal.values[each.key]
                self.storage.set_trial_param(
                    self._id(number), each.key, distribution.to_internal_repr(value), distribution
                )
        return dict(proposal.values)

    def report(self, number: int, evaluation: int, value: float) -> "FrozenTrial":
        """Write down an evaluation of the first objective.

        Returns:
            The trial with it.
        """
        with reachable(self.place):
            self.storage.set_trial_intermediate_value(self._id(number), evaluation, value)
            return self.storage.get_trial(self._id(number))

    def pause(self, number: int, value: float) -> None:
        """Write down what a trial is judged by at the next rung that it has reached."""
        with reachable(self.place):
            values = [*rungs_of(self.storage.get_trial(self._id(number))), value]
            self.storage.set_trial_user_attr(self._id(number), _RUNGS, values)

    def close(self, number: int, result: Result) -> None:
        """Write down how a trial ended; nothing happens where that is known already."""
        from optuna.trial import TrialState

        if self.trial(number).state.is_finished():
            return
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        with reachable(self.place):
            attributes = {"update": result.update, "seconds": result.seconds, "reason": result.reason}
            for name, value in attributes.items():
                self.storage.set_trial_user_attr(self._id(number), name, value)
            for constraint, excess in zip(self.constraints, result.excesses, strict=False):
                self.storage.set_trial_system_attr(self._id(number), f"constraints:{constraint.metric}", excess)
            self.study.tell(number, result.values if result.state == "complete" else None, states[result.state])

    def finished(self) -> "list[FrozenTrial]":
        """Trials that have a result."""
        return [trial for trial in self.trials() if trial.state.is_finished()]

    def best(self) -> "list[FrozenTrial]":
        """The best trial that keeps to the constraints; with several objectives all that no other one dominates.

        Of a population that of its last generation, since those before it are only on their way.
        """
        complete = [trial for trial in self.trials() if trial.state.name == "COMPLETE" and _feasible(trial)]
        last = max((trial.user_attrs.get(AGE, 0) for trial in complete), default=0)
        complete = [trial for trial in complete if trial.user_attrs.get(AGE, 0) == last]
        return [each for each in complete if not any(self._dominates(other, each) for other in complete)][
            : 1 if len(self.objectives) == 1 else None
        ]

    def _dominates(self, left: "FrozenTrial", right: "FrozenTrial") -> bool:
        """Whether `left` is better somewhere and worse nowhere."""
        pairs = list(zip(self.objectives, left.values or (), right.values or (), strict=False))
        worse = any(objective.better(there, here) for objective, here, there in pairs)
        return not worse and any(objective.better(here, there) for objective, here, there in pairs)


def rungs_of(trial: "FrozenTrial") -> tuple[float, ...]:
    """What a trial was judged by at each rung that it has reached."""
    return tuple(trial.user_attrs.get(_RUNGS, ()))


def climb_of(trial: "FrozenTrial") -> Climb:
    """How far a trial has come."""
    return Climb(trial.number, rungs_of(trial), _CLIMBS.get(trial.state.name, "over"))


def _feasible(trial: "FrozenTrial") -> bool:
    return all(excess <= 0 for excess in trial.constraints.values())


def attribute(trial: "FrozenTrial", name: str) -> Any:
    """Something that was written down when the trial ended, or None."""
    attributes: Mapping[str, Any] = trial.user_attrs
    return attributes.get(name)
