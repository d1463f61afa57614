"""What chooses the values of a trial.

The choice is a function of the sweep's seed, the trial's number and the results that there are, so a sweep that was
killed asks what the undisturbed one would have asked. Samplers therefore keep nothing between trials.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from gradwire.trainer.config.range import Range
from gradwire.trainer.sweep.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial

    from gradwire.trainer.sweep.population import Population

_MOST = 10_000_000  # points of a grid that is shuffled
GENERATION = "generation"  # an attribute of trials that CMA-ES placed


@dataclass(frozen=True)
class Asked:
    """What a sampler is asked.

    Args:
        space: The space.
        study: All trials so far.
        trial: The trial that needs values, which is in the study already.
        seed: The sweep's seed.
    """

    space: Space
    study: "Study"
    trial: "FrozenTrial"
    seed: int

    @property
    def trial_seed(self) -> int:
        """A seed for this trial alone, of 32 bits."""
        import numpy as np

        return int(np.random.SeedSequence([self.seed, self.trial.number]).generate_state(1)[0])


@dataclass(frozen=True)
class Proposal:
    """A sampler's answer.

    Args:
        values: By parameter; those of `Space.exact`.
        notes: What the sampler wants to read again in later trials.
    """

    values: Mapping[str, Any]
    notes: Mapping[str, int]


class Sampler(Protocol):
    """Chooses the values of each trial."""

    def misfit(self, space: Space, objectives: int) -> str | None:
        """What speaks against using this sampler there, if anything does."""

    def limit(self, space: Space) -> int | None:
        """Most trials that make sense, if there is such a number."""

    def population(self) -> "Population | None":
        """The population whose generations the trials are; None where each trial is a whole run."""

    def propose(self, asked: Asked) -> Proposal:
        """The values of a trial."""


class _Plain:
    """What most samplers say: nothing speaks against them, there is no end, and each trial is a whole run."""

    def misfit(self, space: Space, objectives: int) -> str | None:
        return None

    def limit(self, space: Space) -> int | None:
        return None

    def population(self) -> "Population | None":
        return None


class Grid(_Plain):
    """Every combination of all values, in order; the last parameter changes first.

    Args:
        shuffle: Whether in an order that is drawn from the sweep's seed instead.
    """

    def __init__(self, shuffle: bool = False) -> None:
        self._shuffle = shuffle

    def misfit(self, space: Space, objectives: int) -> str | None:
        """A grid needs parameters whose values can be counted out, and shuffled where that is wanted."""
        endless = [each for each in space.parameters if each.domain.points is None]
        if endless:
            return f"{endless[0].key} has no end of values: write choice(…) or range(…), or take another sampler"
        if self._shuffle and space.grid_size() > _MOST:
            return f"a grid of {space.grid_size():,} points is too large to shuffle: take sweep/sampler=random"
        return None

    def limit(self, space: Space) -> int | None:
        """The size of the grid."""
        return space.grid_size()

    def propose(self, asked: Asked) -> Proposal:
        """The point of the trial's number."""
        place = asked.trial.number
        if self._shuffle:
            import numpy as np

            place = int(np.random.default_rng(asked.seed).permutation(asked.space.grid_size())[place])
        return Proposal(asked.space.grid_point(place), {})


class Random(_Plain):
    """Independent random values."""

    def propose(self, asked: Asked) -> Proposal:
        """A point that is a function of seed and number."""
        import numpy as np

        units = np.random.default_rng([asked.seed, asked.trial.number]).random(len(asked.space.parameters))
        return Proposal(asked.space.at(units.tolist()), {})


class Quasi(_Plain):
    """A scrambled Sobol sequence (Owen 1998), which covers the space more evenly than chance does."""

    def propose(self, asked: Asked) -> Proposal:
        """The point of the trial's number."""
        from torch.quasirandom import SobolEngine

        engine: Any = SobolEngine(len(asked.space.parameters), scramble=True, seed=asked.seed)  # type: ignore[no-untyped-call]
        units = engine.fast_forward(asked.trial.number).draw(1).double()[0].tolist()
        return Proposal(asked.space.at(units), {})


class Tpe(_Plain):
    """Tree-structured Parzen estimator (Watanabe 2023, arXiv 2304.11127), over all parameters jointly.

    Args:
        startup: Trials with random values before the first that learns from the others.
        candidates: Points that are drawn for each trial, of which the most promising is taken.
    """

    def __init__(self, startup: Annotated[int, Range(ge=0)] = 10, candidates: Annotated[int, Range(ge=1)] = 24) -> None:
        self._startup, self._candidates = startup, candidates

    def propose(self, asked: Asked) -> Proposal:
        """What looks best by the results so far."""
        from optuna.samplers import TPESampler

        return _by(
            TPESampler(seed=asked.trial_seed, n_startup_trials=self._startup, n_ei_candidates=self._candidates),
            asked,
        )


class Gp(_Plain):
    """Gaussian process with expected improvement, Optuna's; for few parameters and expensive trials.

    Args:
        startup: Trials with random values before the first that learns from the others.
        deterministic: Whether the same values always give the same result, so that there is no noise to estimate.
    """

    def __init__(self, startup: Annotated[int, Range(ge=1)] = 10, deterministic: bool = False) -> None:
        self._startup, self._deterministic = startup, deterministic

    def propose(self, asked: Asked) -> Proposal:
        """What looks best by the results so far."""
        from optuna.samplers import GPSampler

        with _quiet():
            sampler = GPSampler(
                seed=asked.trial_seed,
                n_startup_trials=self._startup,
                deterministic_objective=self._deterministic,
                warn_independent_sampling=False,
            )
        return _by(sampler, asked)


class CmaEs(_Plain):
    """Covariance matrix adaptation (Hansen 2016, arXiv 1604.00772) over numbers; what is no number is drawn at random.

    Its state is computed anew for each trial from the trials so far, so nothing is unpickled from the storage.

    Args:
        population: Trials in each generation; null takes 4 + 3 ln(parameters).
        spread: Standard deviation of the first generation, in widths of the parameters' ranges.
    """

    def __init__(
        self,
        population: Annotated[int, Range(ge=2)] | None = None,
        spread: Annotated[float, Range(gt=0)] = 1 / 6,
    ) -> None:
        self._population, self._spread = population, spread

    def misfit(self, space: Space, objectives: int) -> str | None:
        """CMA-ES moves through numbers, by one objective."""
        if objectives > 1:
            return "CMA-ES goes by one objective: take sweep/sampler=tpe or gp"
        return None if _numbers(space) else "CMA-ES moves through numbers, and no parameter here has an order"

    def propose(self, asked: Asked) -> Proposal:
        """A point drawn from the distribution that the generations so far lead to."""
        import numpy as np

        keys, rng = _numbers(asked.space), np.random.default_rng([asked.seed, asked.trial.number])
        units = rng.random(len(asked.space.parameters)).tolist()
        evolution, generation = self._replayed(asked, keys)
        evolution._rng.seed(asked.trial_seed)
        found = dict(zip(keys, evolution.ask().tolist(), strict=True))
        placed = [found.get(each.key, unit) for each, unit in zip(asked.space.parameters, units, strict=True)]
        return Proposal(asked.space.at(placed), {GENERATION: generation})

    def _replayed(self, asked: Asked, keys: list[str]) -> tuple[Any, int]:
        """The evolution after all generations that are complete, and the number of the one that is not."""
        import numpy as np
        from cmaes import CMA

        evolution = CMA(
            np.full(len(keys), 0.5),
            self._spread,
            bounds=np.tile([0.0, 1.0], (len(keys), 1)),
            population_size=self._population,
            seed=asked.seed % 2**32,
        )
        sign = 1.0 if asked.study.direction.name == "MINIMIZE" else -1.0
        domains = {each.key: each.domain for each in asked.space.parameters}
        trials = [trial for trial in asked.study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
        for generation in range(len(trials) + 1):
            members = [trial for trial in trials if trial.user_attrs.get(GENERATION) == generation]
            if len(members) < evolution.population_size:
                break
            evolution.tell(
                [
                    (np.array([domains[key].unit(trial.params[key]) for key in keys]), sign * float(trial.value or 0.0))
                    for trial in members[: evolution.population_size]
                ]
            )
        return evolution, generation


def _numbers(space: Space) -> list[str]:
    """The parameters whose values are numbers in order."""
    from gradwire.trainer.sweep.parameters import Choice

    return [each.key for each in space.parameters if not isinstance(each.domain, Choice)]


def _by(sampler: "BaseSampler", asked: Asked) -> Proposal:
    """The choice of a sampler of Optuna's, in which nothing is written to the study parameter by parameter."""
    distributions = {each.key: each.domain.distribution() for each in asked.space.parameters}
    with _quiet():
        sampler.before_trial(asked.study, asked.trial)
        together = sampler.infer_relative_search_space(asked.study, asked.trial)
        values = dict(sampler.sample_relative(asked.study, asked.trial, together))
        for key, distribution in distributions.items():
            if key not in values:
                values[key] = sampler.sample_independent(asked.study, asked.trial, key, distribution)
    return Proposal(asked.space.exact(values), {})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's warnings about what it may change one day."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
