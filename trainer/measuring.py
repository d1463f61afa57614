"""When the noise scale is measured during a run, its averages, and what they say in the metrics."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from gradwire.schedulers import Clock, Duration
from gradwire.schedulers.noise_scale import NoiseScale, Norms, total
from gradwire.trainer.errors import NoiseError
from gradwire.trainer.noise import Meter, Watch, meter_for
from gradwire.trainer.norm_layers import NormLayerMeter
from gradwire.trainer.optimizers import RATIO
from gradwire.trainer.strategies.exchanges import hook
from gradwire.trainer.triggers import Every

log = logging.getLogger(__name__)
EVERY = Duration(10, "updates")  # for a plan that decides by the noise scale, where the settings do not say


class Measuring:
    """Measures the gradient noise scale at some updates: of all parameters, and of each of the optimizer's groups.

    Args:
        every: At which updates.
        decay: Weight that the past keeps in the averages at each measurement.
        needed: Whether the plan decides by it, so that a run that cannot measure must not begin.
    """

    def __init__(self, every: Every, decay: float, *, needed: bool) -> None:
        self._every = every
        self._decay = decay
        self._needed = needed
        self._meter: Meter | None = None
        self._whole = NoiseScale(decay)
        self._groups: dict[str, NoiseScale] = {}

    def prepare(
        self,
        model: nn.Module,
        groups: Sequence[Mapping[str, Any]],
        world_size: int,
        micro_batches: int,
        watch: Watch = hook,
    ) -> None:
        """Choose the way to measure, once the passes of an update are known; another one begins its averages anew.

        Args:
            model: What trains.
            groups: Those of its optimizer.
            world_size: Ranks that take part in an update.
            micro_batches: Of each rank in an update.
            watch: Has a function see each gradient of a parameter before it is accumulated and reduced.

        Raises:
            NoiseError: the plan needs the noise scale and there is no way to measure it.
        """
        choice = meter_for(model, _by_name(groups), world_size, micro_batches, watch)
        if choice.meter is None and self._needed:
            raise NoiseError(f"batch size or learning rate are to follow the noise scale, but {choice.reason}")
        if choice.meter is None and self._every.ever:
            log.info("the noise scale is not measured: %s", choice.reason)
        if self._needed and isinstance(choice.meter, NormLayerMeter):
            log.warning("batch size or learning rate follow a proxy of the noise scale: %s", choice.reason)
        self._meter = choice.meter
        if self._meter is not None and self._groups and self._groups.keys() != self._meter.groups.keys():
            self._whole, self._groups = NoiseScale(self._decay), {}

    def meter(self, before: Clock, batch_size: int) -> Meter | None:
        """What measures the update that starts at this clock; None where it is not measured."""
        return self._meter if self._every.due(before, before.advance(batch_size)) else None

    def take(self, measured: Callable[[], Mapping[str, Norms]] | None) -> float | None:
        """Add an update's norms to the averages; the noise scale that results, None while there is none.

        Where they cannot be used, a run that only reports the noise scale goes on without it.

        Raises:
            NoiseError: they cannot be used, and the plan needs them.
        """
        try:
            norms = {} if measured is None else measured()
        except NoiseError as error:
            if self._needed:
                raise
            log.warning("the noise scale is not measured: %s", error)
            self._meter, norms = None, {}
        if not norms:
            return None
        self._whole.update(total(norms.values()))
        for name, group in norms.items():
            self._groups.setdefault(name, NoiseScale(self._decay)).update(group)
        return self._whole.value

    def metrics(self, batch_size: int) -> dict[str, float]:
        """The noise scale by group, in samples; the gradient's variance at this batch size, and its squared norm."""
        if self._whole.noise is None or self._whole.gradient is None:
            return {}
        found = {"gradient_variance": self._whole.noise / batch_size, "gradient_squared": self._whole.gradient}
        if self._whole.value is not None:
            found["noise_scale"] = self._whole.value
        values = {name: group.value for name, group in self._groups.items()}
        return found | {f"noise_scale/{name}": value for name, value in values.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        groups = {name: group.state_dict() for name, group in self._groups.items()}
        return {"whole": self._whole.state_dict(), "groups": groups}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._whole.load_state_dict(state["whole"])
        self._groups = {name: NoiseScale(self._decay) for name in state["groups"]}
        for name, group in self._groups.items():
            group.load_state_dict(state["groups"][name])


def _by_name(of_optimizer: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[nn.Parameter]]:
    """The optimizer's parameters by what sets their group apart."""
    groups: dict[str, list[nn.Parameter]] = {}
    for group in of_optimizer:
        name = f"weight_decay={group.get('weight_decay', 0):g}"
        ratio = group.get(RATIO, 1.0)
        groups.setdefault(name if ratio == 1 else f"{name},lr_ratio={ratio:g}", []).extend(group["params"])
    return dict(groups)
