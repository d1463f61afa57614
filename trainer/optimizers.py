"""Parameter groups by name pattern, and optimizer state keyed by parameter name."""

import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from gradwire.trainer.errors import StateMismatchError

RATIO = "lr_ratio"  # a group's learning rate over the plan's


@dataclass(frozen=True)
class Group:
    """Settings for the parameters whose name matches a pattern; what is None stays as the optimizer has it.

    Args:
        pattern: Shell-style pattern on the parameter's full name, such as `*.bias` or `blocks.0.*`; the first that
            matches counts.
        lr: Peak learning rate of these parameters; it follows the same schedule as all others.
        weight_decay: Weight decay of these parameters.
    """

    pattern: str
    lr: float | None = None
    weight_decay: float | None = None


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float | None, groups: Iterable[Group] = ()
) -> list[dict[str, Any]]:
    """Groups for a torch optimizer: the given patterns first; of the rest, what has fewer than two axes is not decayed.

    Raises:
        StateMismatchError: there is no trainable parameter, or a pattern matches none.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise StateMismatchError(
            f"{type(model).__name__} has no trainable parameter: nothing would be trained. Set requires_grad on some"
        )
    chosen: dict[tuple[float, float | None], list[Tensor]] = {}
    patterns = list(groups)
    unused = {group.pattern for group in patterns}
    for name, parameter in trainable.items():
        group = next((group for group in patterns if fnmatch.fnmatchcase(name, group.pattern)), None)
        if group is not None:
            unused.discard(group.pattern)
        chosen.setdefault(_settings(parameter, lr, weight_decay, group), []).append(parameter)
    if unused:
        raise StateMismatchError(
            f"optimizer.groups: no trainable parameter matches {', '.join(map(repr, sorted(unused)))}; "
            f"names look like {', '.join(list(trainable)[:3])}"
        )
    return [_group(parameters, ratio, decay, lr) for (ratio, decay), parameters in chosen.items()]


def _settings(
    parameter: Tensor, lr: float, weight_decay: float | None, group: Group | None
) -> tuple[float, float | None]:
    default_decay = 0.0 if weight_decay is not None and parameter.dim() < 2 else weight_decay
    if group is None:
        return 1.0, default_decay
    if group.lr is not None and lr == 0:
        raise StateMismatchError(f"optimizer.groups sets lr={group.lr} for {group.pattern!r}, but optimizer.lr is 0")
    return (
        1.0 if group.lr is None else group.lr / lr,
        default_decay if group.weight_decay is None else group.weight_decay,
    )


def _group(parameters: list[Tensor], ratio: float, decay: float | None, lr: float) -> dict[str, Any]:
    group: dict[str, Any] = {"params": parameters, "lr": lr * ratio, RATIO: ratio}
    return group if decay is None else group | {"weight_decay": decay}


def build_optimizer(
    make: Callable[[list[dict[str, Any]]], Optimizer],
    model: nn.Module,
    lr: float,
    weight_decay: float | None,
    groups: Iterable[Group] = (),
) -> Optimizer:
    """`make(groups)` with the groups of `parameter_groups`."""
    return make(parameter_groups(model, lr, weight_decay, groups))


def set_step(optimizer: Optimizer, lr: float, betas: tuple[float, float] | None, eps: float | None) -> None:
    """Give every group the plan's values for the coming update (learning rates by the group's own ratio)."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(RATIO, 1.0)
        if betas is not None and "betas" in group:
            group["betas"] = betas
        if eps is not None and "eps" in group:
            group["eps"] = eps


def members(model: nn.Module, optimizer: Optimizer) -> str:
    """Which parameters each group of the optimizer holds: the xxh3-128 of their names, 32 hexadecimal digits."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]
    return xxhash.xxh3_128_hexdigest(json.dumps(groups).encode())


def named_state(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """The optimizer's state by parameter name. Settings (rates, decay) are not state: config and plan give them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: dict(values) for parameter, values in optimizer.state.items()}


def load_named_state(
    model: nn.Module,
    optimizer: Optimizer,
    saved: Mapping[str, Mapping[str, Any]],
    placed: Callable[[Any, Tensor], Any] = lambda value, like: value,
) -> None:
    """Load what `named_state` gave, into an optimizer over the same parameters.

    Args:
        model: Names the parameters.
        optimizer: Over them.
        saved: By parameter name.
        placed: Lays a whole tensor out as a parameter is.

    Raises:
        StateMismatchError: the saved state is of parameters that this optimizer does not hold.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    members = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    unknown = sorted(saved.keys() - set(members))
    if unknown:
        raise StateMismatchError(
            f"the saved optimizer state is of parameters that this model does not train: {', '.join(unknown[:5])}"
        )
    parameters = dict(model.named_parameters())
    state = {
        index: {key: placed(value, parameters[name]) for key, value in saved[name].items()}
        for index, name in enumerate(members)
        if name in saved
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
