"""`algorithm="auto"`: choices by size, made when a size first comes, or taken over from the run that is resumed."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.comm.choices import Choice, Way, size_class
from gradwire.comm.codecs.codec import Codec
from gradwire.comm.errors import CommError
from gradwire.comm.topology import Topology
from gradwire.comm.tuning import Tuner


class Automatic:
    """The choices for one topology and its codecs.

    Args:
        topology: The axes.
        codecs: By axis: what may be used.
    """

    def __init__(self, topology: Topology, codecs: Mapping[str, Codec]) -> None:
        self._topology, self._codecs = topology, dict(codecs)
        self._choices: dict[int, Choice] = {}
        self._tuners: dict[torch.device, Tuner] = {}

    @property
    def choices(self) -> list[Choice]:
        """From small to large tensors."""
        return [self._choices[each] for each in sorted(self._choices)]

    def choice(
        self,
        nbytes: int,
        device: torch.device,
        group: dist.ProcessGroup | None,
        run: Callable[[Way, Tensor], None],
    ) -> Choice:
        """How tensors of so many bytes are reduced; measured by `run`, see `Tuner`, where that is not known yet."""
        if size_class(nbytes) not in self._choices:
            if device not in self._tuners:
                self._tuners[device] = Tuner(self._topology, self._codecs, group, device, run)
            self._choices[size_class(nbytes)] = self._tuners[device].choose(nbytes)
        return self._choices[size_class(nbytes)]

    def known(self, nbytes: int) -> Choice | None:
        """How tensors of so many bytes are reduced, if that is chosen."""
        return self._choices.get(size_class(nbytes))

    def state_dict(self) -> dict[str, Any]:
        """All choices."""
        return {"made_for": self._made_for, "choices": [choice.state_dict() for choice in self.choices]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over choices instead of measuring.

        Raises:
            CommError: They were made on another topology or with other codecs.
        """
        if state["made_for"] != self._made_for:
            raise CommError(
                f"the choices were made for {state['made_for']} and this is {self._made_for}: leave them out, and they "
                "are measured again"
            )
        self._choices = {choice.size_class: choice for choice in map(Choice.load, state["choices"])}

    @property
    def _made_for(self) -> str:
        codecs = ", ".join(f"{codec} along {axis}" for axis, codec in self._codecs.items())
        return f"{self._topology} with {codecs or 'no codec'}"
