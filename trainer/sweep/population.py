"""Population-based training: a trial is one member of a population for one part of the run.

The members of the first generation begin anew. Each later one goes on from the checkpoint of a parent in the generation
before, so that a chain of parents is one run whose values changed on the way: a schedule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from gradwire.trainer.config.range import Range
from gradwire.trainer.sweep.errors import NoResultError
from gradwire.trainer.sweep.parameters import Choice, Domain, Interval
from gradwire.trainer.sweep.samplers import Asked, Proposal
from gradwire.trainer.sweep.space import Space

if TYPE_CHECKING:
    from numpy.random import Generator
    from optuna.trial import FrozenTrial

PARENT, AGE = "parent", "age"  # attributes of trials: whose checkpoint they begin with, and generations before theirs

_SHAPES = ("model", "adapter", "optimizer")  # config groups that a checkpoint is of one option of


@dataclass(frozen=True)
class Population:
    """Generations of equally many members; trials are numbered generation by generation.

    Args:
        size: Members.
        generations: Parts of the run.
        keeps: Whether checkpoints stay that no later generation begins with.
    """

    size: int
    generations: int
    keeps: bool

    def until(self, number: int) -> float | None:
        """The share of the run at which a trial ends; None is the run's end."""
        age = number // self.size + 1
        return None if age == self.generations else age / self.generations

    def since(self, number: int) -> float:
        """The share of the run at which a trial begins."""
        return number // self.size / self.generations

    def before(self, number: int) -> range:
        """The trials of the generation before a trial's."""
        first = number // self.size * self.size
        return range(max(first - self.size, 0), first)

    def is_ready(self, number: int, trials: Sequence["FrozenTrial"]) -> bool:
        """Whether a trial can have parents: all of the generation before have their results."""
        return all(trials[each].state.is_finished() for each in self.before(number))

    def unfit(self, trials: int | None) -> str | None:
        """What speaks against so many trials, if anything does."""
        if trials is None or trials % self.size == 0:
            return None
        return f"{trials} trials are no whole generations of {self.size}: leave sweep.trials out for all of them"

    def outlived(self, number: int) -> range:
        """The trials whose checkpoints nothing begins with any more once this trial does."""
        before = self.before(number)
        return range(0) if self.keeps or not before else self.before(before.start)


class Pbt:
    """Population-based training (Jaderberg 2017, arXiv 1711.09846) with truncation selection.

    After each part of the run the worst members go on from checkpoints of the best, with perturbed values; the others
    go on as they are.

    Args:
        population: Members.
        generations: Parts of the run.
        replaced: Share of the members that go on as copies of as many of the best.
        spread: How far a value is moved up or down, in widths of its parameter's range; ordered values only.
        resampled: How likely a value is drawn anew instead.
        keep_checkpoints: Whether generations keep their checkpoints when no later one begins with them any more.
    """

    def __init__(
        self,
        population: Annotated[int, Range(ge=2)] = 8,
        generations: Annotated[int, Range(ge=2)] = 5,
        replaced: Annotated[float, Range(gt=0, le=0.5)] = 0.25,
        spread: Annotated[float, Range(gt=0, le=1)] = 0.1,
        resampled: Annotated[float, Range(ge=0, le=1)] = 0.1,
        keep_checkpoints: bool = False,
    ) -> None:
        self._population = Population(population, generations, keep_checkpoints)
        self._replaced, self._spread, self._resampled = max(1, round(replaced * population)), spread, resampled

    def misfit(self, space: Space, objectives: int) -> str | None:
        """Members are ranked by one objective."""
        return "members are ranked by one objective, and there are several" if objectives > 1 else None

    def limit(self, space: Space) -> int:
        """All members of all generations."""
        return self._population.size * self._population.generations

    def population(self) -> Population:
        """The population whose generations the trials are."""
        return self._population

    def propose(self, asked: Asked) -> Proposal:
        """Random values at first; then a parent, and its values or what they are perturbed to.

        Raises:
            NoResultError: the whole generation before failed.
        """
        import numpy as np

        number = asked.trial.number
        age, member = divmod(number, self._population.size)
        rng = np.random.default_rng([asked.seed, age, member])
        if age == 0:
            return Proposal(asked.space.at(rng.random(len(asked.space.parameters)).tolist()), {AGE: 0})
        ranked = self._ranked(asked)
        replaced = {each.number for each in ranked[self._population.size - self._replaced :]}
        parents = {each.number: each for each in ranked}
        own = parents.get(number - self._population.size)
        if own is not None and own.number not in replaced:
            return Proposal(asked.space.exact(own.params), {AGE: age, PARENT: own.number})
        parent = ranked[int(rng.integers(min(self._replaced, len(ranked))))]
        return Proposal(self._explored(asked.space, parent.params, rng), {AGE: age, PARENT: parent.number})

    def _ranked(self, asked: Asked) -> "list[FrozenTrial]":
        """The members of the generation before that did not fail, the best first."""
        trials = asked.study.get_trials(deepcopy=False)
        before = [trials[number] for number in self._population.before(asked.trial.number)]
        sign = 1.0 if asked.study.direction.name == "MINIMIZE" else -1.0
        complete = [trial for trial in before if trial.state.name == "COMPLETE"]
        if not complete:
            raise NoResultError(
                f"all {len(before)} members of generation {before[0].number // self._population.size} failed, so no "
                f"member can go on. The last one said: {before[-1].user_attrs.get('reason')}"
            )
        return sorted(complete, key=lambda trial: (sign * float(trial.value or 0.0), trial.number))

    def _explored(self, space: Space, values: Mapping[str, Any], rng: "Generator") -> dict[str, Any]:
        found = space.exact(values)
        for each in space.parameters:
            anew, up, unit = rng.random(3).tolist()
            if anew < self._resampled:
                found[each.key] = each.domain.at(unit)
            elif not isinstance(each.domain, Choice):
                step = self._step(each.domain) * (1 if up < 0.5 else -1)
                found[each.key] = each.domain.at(min(max(each.domain.unit(found[each.key]) + step, 0.0), 1.0))
        return found

    def _step(self, domain: Domain) -> float:
        """How far a value moves in the unit interval: to the next one at least."""
        counted = not isinstance(domain, Interval) or domain.whole
        return max(self._spread, 1 / len(domain.points or ())) if counted else self._spread


def lineage(trial: "FrozenTrial", trials: Sequence["FrozenTrial"]) -> "list[FrozenTrial]":
    """A trial and its ancestors, the first one first."""
    found = [trial]
    while (parent := found[-1].user_attrs.get(PARENT)) is not None:
        found.append(trials[parent])
    return found[::-1]


def unfit_for_generations(section: Mapping[str, Any], space: Space, config: Mapping[str, Any]) -> str | None:
    """What speaks against members that go on from each other's checkpoints, if anything does.

    Args:
        section: The `sweep` section.
        space: What is searched.
        config: The whole configuration.
    """
    from gradwire.schedulers import Duration

    keys = [each.key for each in space.parameters]
    shaped = next((key for key in keys if key in _SHAPES), None)
    length = next((key for key in keys if key in ("run", "run.length")), None)
    batch = next((key for key in keys if key.partition(".")[0] == "batch"), None)
    if section["pruner"] is not None:
        return "members that are behind are replaced, not ended: sweep/pruner=null"
    if config["checkpoint"]["url"] is not None or config["checkpoint"]["tiers"]:
        return "members copy each other's checkpoints in the sweep's folder: leave out checkpoint.url and .tiers"
    if shaped is not None:
        return f"a member cannot go on from a checkpoint of another {shaped}: sweep it with another sampler"
    if length is not None:
        return f"{length} is swept, and a member cannot go on from where a run of another length was: leave it out"
    if batch is not None and Duration.parse(config["run"]["length"]).unit == "updates":
        return f"{batch} is swept and run.length counts updates, so members' runs differ: give it in samples or epochs"
    return None
