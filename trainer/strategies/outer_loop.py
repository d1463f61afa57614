"""The outer parameters of hosts that train by themselves, and their synchronizations one after another."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.comm import AllReduce
from gradwire.comm.exposure import Exposure
from gradwire.comm.telemetry import Traffic
from gradwire.trainer.strategies.fragment import Fragment
from gradwire.trainer.strategies.outer import Calendar, OuterSGD, deal


@dataclass(frozen=True)
class _Flight:
    """A fragment whose outer gradient is under way, and the number of updates after which it is applied."""

    fragment: Fragment
    lands: int


class OuterLoop:
    """Has every fragment's outer gradient averaged when the calendar says so, and applies it.

    Attributes:
        fragments: The trained parameters, dealt out.
        parameters: The outer ones, by name; the same on every rank.
        updates: Updates of the inner optimizer so far.
        errors: By axis, the relative error of what was averaged last.

    Args:
        model: Its trained parameters, equal on all ranks.
        all_reduce: Over all ranks.
        ranks: How many there are.
        calendar: When fragments are synchronized.
        optimizer: Moves the outer parameters.
        share: Of a host's own parameters what stays where outer ones come late.
    """

    def __init__(
        self, model: nn.Module, all_reduce: AllReduce, ranks: int, calendar: Calendar, optimizer: OuterSGD, share: float
    ) -> None:
        self.fragments = [Fragment(members, all_reduce, ranks) for members in deal(model, calendar.fragments)]
        self.updates = 0
        self.errors: dict[str, float] = {}
        self._calendar = calendar
        self._optimizer = optimizer
        self._share = share
        self._flight: _Flight | None = None
        self._begun: dict[int, int] = {}  # by fragment, the updates after which its last reduction began
        self._traffic: list[Mapping[str, Traffic]] = []
        self.parameters: dict[str, Tensor] = {
            name: parameter.detach().clone()
            for fragment in self.fragments
            for name, parameter in zip(fragment.names, fragment.parameters, strict=True)
        }
        self._velocities = {name: torch.zeros_like(outer) for name, outer in self.parameters.items()}
        self._device = next(iter(self.parameters.values())).device
        self._exposure = Exposure(self._device)

    def advance(self) -> None:
        """An update is over: apply what is due, and begin what is due."""
        self.updates += 1
        if self._flight is not None and self._flight.lands <= self.updates:
            self._land(self._share)
        due = self._calendar.due(self.updates)
        if due is not None:
            self._launch(due, self._calendar.overlap)

    def conclude(self) -> None:
        """Synchronize now what was not after the last update; all hosts hold the outer parameters then."""
        self.land()
        for place in range(len(self.fragments)):
            if self._begun.get(place) != self.updates:
                self._launch(place, 0)
        self.give_out()

    def land(self) -> None:
        """Apply now what is under way."""
        if self._flight is not None:
            self._land(self._share)

    def receive(self) -> None:
        """Wait for what is under way; it is applied in its time."""
        if self._flight is None:
            return
        with self._exposure.waiting():
            traffic = self._flight.fragment.receive()
        if traffic:
            self._traffic.append(traffic)
            self.errors |= {axis: each.error for axis, each in traffic.items() if each.error is not None}

    def take_exposed(self) -> float:
        """Seconds since the last call that were spent waiting for outer gradients."""
        return self._exposure.take()

    def take_traffic(self) -> list[Mapping[str, Traffic]]:
        """What each reduction that was waited for since the last call has cost, by axis."""
        taken, self._traffic = self._traffic, []
        return taken

    def state_dict(self) -> dict[str, Any]:
        """What is the same on every rank, but for the outer parameters. What is under way is waited for."""
        self.receive()
        under_way = None
        if self._flight is not None:
            fragment = self._flight.fragment
            gradients = dict(zip(fragment.names, fragment.gradients, strict=True))
            under_way = {"lands": self._flight.lands, "gradients": gradients}
        rounds = [fragment.rounds for fragment in self.fragments]
        return {"updates": self.updates, "rounds": rounds, "velocities": self._velocities, "under_way": under_way}

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Whether it is of as many fragments, of which the one that was under way is one."""
        same = len(state["rounds"]) == len(self.fragments)
        return same and (state["under_way"] is None or self._like(state["under_way"]) is not None)

    @torch.no_grad()
    def begin(self, state: Mapping[str, Any] | None = None) -> None:
        """Start from the parameters that the model holds now as the outer ones, with what `state_dict` gave.

        What was under way goes on if it fits; else it is applied to the outer parameters at once.
        """
        self.receive()
        self._flight, self._begun, self._traffic, self.errors = None, {}, [], {}
        for name, parameter in self._named():
            self.parameters[name].copy_(parameter)
            self._velocities[name].zero_()
        if state is None:
            self.updates = 0
            return
        for name, velocity in state["velocities"].items():
            self._velocities[name].copy_(velocity)
        self.updates = state["updates"]
        for fragment, rounds in zip(self.fragments, self._rounds(state["rounds"]), strict=True):
            fragment.rounds = rounds
        if state["under_way"] is not None:
            self._put_under_way(state["under_way"])

    @torch.no_grad()
    def give_out(self) -> None:
        """Have the model hold the outer parameters."""
        for name, parameter in self._named():
            parameter.copy_(self.parameters[name])

    def in_state_of(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's state with the outer parameters in place of its own."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        tensors = model.state_dict(keep_vars=True)
        return {key: self.parameters.get(names.get(id(each), ""), each.detach()) for key, each in tensors.items()}

    @contextmanager
    def given_out(self, beside: Iterable[Tensor]) -> Iterator[None]:
        """Within the block the model holds the outer parameters; afterwards these, and what is `beside`, as before."""
        held = [*(parameter for _, parameter in self._named()), *beside]
        before = [tensor.detach().clone() for tensor in held]
        self.give_out()
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, kept in zip(held, before, strict=True):
                    tensor.copy_(kept)

    def _named(self) -> list[tuple[str, Tensor]]:
        return [
            member for fragment in self.fragments for member in zip(fragment.names, fragment.parameters, strict=True)
        ]

    def _rounds(self, saved: Sequence[int]) -> Sequence[int]:
        return saved if len(saved) == len(self.fragments) else [max(saved)] * len(self.fragments)

    def _like(self, under_way: Mapping[str, Any]) -> Fragment | None:
        names = under_way["gradients"].keys()
        return next((fragment for fragment in self.fragments if names == set(fragment.names)), None)

    def _put_under_way(self, under_way: Mapping[str, Any]) -> None:
        fragment, gradients = self._like(under_way), under_way["gradients"]
        if fragment is None:
            self._apply(list(gradients), [gradient.to(self._device) for gradient in gradients.values()])
            return
        fragment.put(gradients)
        self._flight = _Flight(fragment, under_way["lands"])

    def _launch(self, place: int, overlap: int) -> None:
        self.land()
        fragment = self.fragments[place]
        fragment.send([self.parameters[name] for name in fragment.names])
        self._flight, self._begun[place] = _Flight(fragment, self.updates + overlap), self.updates
        if not overlap:
            self._land(0.0)

    def _land(self, share: float) -> None:
        self.receive()
        assert self._flight is not None
        fragment, self._flight = self._flight.fragment, None
        self._apply(fragment.names, fragment.gradients)
        fragment.take_outer([self.parameters[name] for name in fragment.names], share)

    def _apply(self, names: Sequence[str], gradients: list[Tensor]) -> None:
        outer, velocities = ([of[name] for name in names] for of in (self.parameters, self._velocities))
        self._optimizer.step(outer, velocities, gradients)
