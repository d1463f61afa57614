"""The arithmetic of training apart: which parameters hosts synchronize when, and what moves the outer parameters.

DiLoCo (Douillard et al. 2023, arXiv 2311.08105) and its streaming form (Douillard et al. 2025, arXiv 2501.18512).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.trainer.blocks import blocks_of
from gradwire.trainer.errors import StrategyError


@dataclass(frozen=True)
class Calendar:
    """When fragments are synchronized, as a function of the number of updates done and of nothing else.

    Every `every / fragments` updates one fragment's reduction begins, in turns; so each begins every `every` updates.

    Args:
        every: Updates between two synchronizations of a fragment (H).
        fragments: How many there are; they divide `every`.
        overlap: Updates between the beginning of a reduction and its application.

    Raises:
        StrategyError: The numbers do not go together.
    """

    every: int
    fragments: int = 1
    overlap: int = 0

    def __post_init__(self) -> None:
        if self.every < 1 or self.fragments < 1 or self.overlap < 0:
            raise StrategyError(
                f"every and fragments are at least 1 and overlap at least 0; found every {self.every}, fragments "
                f"{self.fragments}, overlap {self.overlap}"
            )
        if self.every % self.fragments:
            near = max(1, round(self.every / self.fragments)) * self.fragments
            raise StrategyError(
                f"every is {self.every} and no multiple of fragments, {self.fragments}: the fragments take turns at "
                f"equal distances; write every {near}, say"
            )
        if self.overlap and self.overlap >= self.spacing:
            raise StrategyError(
                f"overlap is {self.overlap} and the next reduction begins after every / fragments = {self.spacing} "
                f"updates: write at most {self.spacing - 1}"
            )

    @property
    def spacing(self) -> int:
        """Updates between the beginnings of two reductions."""
        return self.every // self.fragments

    def due(self, updates: int) -> int | None:
        """The fragment whose reduction begins after so many updates, if one does."""
        turn, rest = divmod(updates, self.spacing)
        return None if rest or not turn else (turn - 1) % self.fragments


@dataclass(frozen=True)
class OuterSGD:
    """SGD with Nesterov's momentum on outer gradients g, as torch has it: v ← m·v + g, θ ← θ − lr·(g + m·v).

    Args:
        lr: Outer learning rate.
        momentum: m.
    """

    lr: float
    momentum: float

    @torch.no_grad()
    def step(self, parameters: list[Tensor], velocities: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the parameters, and take the gradients into the velocities; both in place."""
        torch._foreach_mul_(velocities, self.momentum)
        torch._foreach_add_(velocities, gradients)
        steps = torch._foreach_add(gradients, velocities, alpha=self.momentum)
        torch._foreach_add_(parameters, steps, alpha=-self.lr)


@torch.no_grad()
def mix(own: list[Tensor], outer: list[Tensor], share: float) -> None:
    """Have `own` be share·own + (1 − share)·outer, in place; with a share of 0 the bits of `outer`."""
    if share == 0.0:
        torch._foreach_copy_(own, outer)
    else:
        torch._foreach_lerp_(own, outer, 1.0 - share)


Member = tuple[str, nn.Parameter]


def parts_of(model: nn.Module) -> tuple[list[list[Member]], list[list[Member]]]:
    """A model's trained parameters by block, and by layer where they lie outside the blocks; each parameter once.

    Of a model without repeated blocks every layer counts as a block.
    """
    blocks = blocks_of(model)
    whole = blocks == [model]
    owners = {id(each): place for place, block in enumerate([] if whole else blocks) for each in block.parameters()}
    by_block: dict[Any, list[Member]] = {}
    by_layer: dict[Any, list[Member]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place = owners.get(id(parameter))
            found, key = (by_layer, name.rpartition(".")[0]) if place is None else (by_block, place)
            found.setdefault(key, []).append((name, parameter))
    layers = list(by_layer.values())
    return (layers, []) if whole else ([by_block[place] for place in sorted(by_block)], layers)


def deal(model: nn.Module, fragments: int) -> list[list[Member]]:
    """A model's trained parameters in fragments: block i goes to fragment i mod F, so that each has all depths.

    What lies outside the blocks goes, layer by layer, to whichever fragment is the smallest by then. In a fragment the
    parameters keep the model's order.

    Raises:
        StrategyError: There are fewer parts than fragments.
    """
    blocks, layers = parts_of(model)
    if len(blocks) + len(layers) < fragments:
        raise StrategyError(
            f"fragments is {fragments} and the model has {len(blocks) + len(layers)} parts (blocks, and layers outside "
            "of them): a fragment has one at least"
        )
    dealt: list[list[Member]] = [[] for _ in range(fragments)]
    for place, block in enumerate(blocks):
        dealt[place % fragments] += block
    for layer in layers:
        min(dealt, key=_elements).extend(layer)
    order = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    return [sorted(members, key=lambda member: order[member[0]]) for members in dealt]


def _elements(members: Sequence[Member]) -> int:
    return sum(parameter.numel() for _, parameter in members)
