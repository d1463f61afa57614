"""The state of a run: everything that is not a function of the configuration, the seed and the clock."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gradwire.checkpoint import State
from gradwire.schedulers import Clock, Measured
from gradwire.trainer.data.errors import DataError
from gradwire.trainer.decisions import CODEC, NOISE_SCALE
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.update import without_requests

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer

log = logging.getLogger("gradwire")
Own = Mapping[str, Any]  # what a rank carries over beside what all share
_IN_FLIGHT = "in_flight"  # the gradient that is under way where they come late; the same on every rank
_OUTER = "outer"  # what is the same on every rank where hosts train by themselves


def capture(trainer: "Trainer") -> State:
    """The trainer's state as a tree; tensors are the live ones."""
    strategy = trainer.strategy
    portable = strategy.portable
    shared = {
        "model": portable(strategy.tensors(trainer.model)),
        "optimizer": portable(strategy.optimizer_state(trainer.model, trainer.optimizer)),
        "optimizer_kind": type(trainer.optimizer).__name__,
        "average": None if trainer.average is None else portable(trainer.average.state_dict()),
        "scaler": trainer.precision.state_dict(),
        **progress(trainer),
    }
    local = strategy.state_dict()
    in_flight = local.pop(_IN_FLIGHT, None)
    if in_flight is not None:
        shared[_IN_FLIGHT] = {**in_flight, "carried": without_requests(in_flight["carried"])}
    if _OUTER in local:
        shared[_OUTER] = local.pop(_OUTER)
    return State(shared=shared, local=local)


def progress(trainer: "Trainer") -> dict[str, Any]:
    """How far the trainer has come: what is not changed by applying a gradient."""
    return {
        "clock": trainer.clock.to_dict(),
        "stream": trainer.stream.state_dict(),
        "callbacks": {name: callback.state_dict() for name, callback in trainer.callbacks.items()},
        "decisions": trainer.decisions.state_dict(),
        "noise_scale": trainer.measuring.state_dict(),
        "pending": trainer.records.pending,
    }


def put_back_progress(trainer: "Trainer", shared: Mapping[str, Any]) -> None:
    """Give the trainer what `progress` captured.

    Raises:
        StateMismatchError: it lies past the end of the plan.
    """
    trainer.clock = Clock.from_dict(shared["clock"])
    trainer.stream.load_state_dict(shared["stream"])
    for name, callback in trainer.callbacks.items():
        callback.load_state_dict(shared["callbacks"].get(name, {}))
    trainer.decisions.load_state_dict(shared["decisions"])
    trainer.measuring.load_state_dict(shared["noise_scale"])
    if trainer.plan.measures:
        decided = trainer.decisions.of(NOISE_SCALE)
        trainer.plan = trainer.plan.measured([Measured(entry.samples, float(entry.value)) for entry in decided])
    trainer.records.pending = shared["pending"]
    _check_within_plan(trainer)


def put_back_model(trainer: "Trainer", state: State) -> None:
    """Give the trainer what evaluation needs of a captured state: the model, its moving average and the clock.

    Raises:
        StateMismatchError: the state is of another model, or holds no moving average.
    """
    shared = state.shared
    with _of_this_version():
        try:
            trainer.strategy.load_model(trainer.model, shared["model"])
        except RuntimeError as error:
            raise StateMismatchError(f"the snapshot is of another model: {error}") from error
        if trainer.average is not None:
            if shared["average"] is None:
                raise StateMismatchError("ema is set, but the snapshot holds no moving average: set ema=null")
            trainer.average.load_state_dict(shared["average"])
        trainer.clock = Clock.from_dict(shared["clock"])


@contextmanager
def _of_this_version() -> Iterator[None]:
    """A tree that lacks something, or has other things in its places, is a mismatch."""
    try:
        yield
    except DataError:  # says of itself what does not fit
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        odd = f"it holds no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
        raise StateMismatchError(
            f"another version wrote the snapshot ({odd}). Resume with that one, or begin a run from its weights with "
            "model.init"
        ) from error


def put_back(
    trainer: "Trainer", state: State, everyone: Callable[[], Sequence[Own]] | None = None, *, moved: bool = False
) -> None:
    """Give the trainer a captured state; see `Trainer.restore`.

    Raises:
        StateMismatchError: the state is of another model, optimizer or set of callbacks, lacks a part, or lies past
            the end of the plan.
    """
    with _of_this_version():
        _put_back(trainer, state)
    in_flight = {key: value for key, value in state.shared.items() if key == _IN_FLIGHT}
    if in_flight and not trainer.strategy.late:
        log.warning(
            "the gradient that was under way at update %d is dropped: gradients do not come late now",
            trainer.clock.updates,
        )
        in_flight = {}
    if _OUTER in state.shared and trainer.strategy.apart:
        in_flight[_OUTER] = state.shared[_OUTER]
    elif _OUTER in state.shared:
        log.warning(
            "until update %d hosts trained by themselves: the run goes on from their outer parameters and the first "
            "host's optimizer. What hosts had learned since their last synchronization is dropped",
            trainer.clock.updates,
        )
    put_back_own(
        trainer,
        {**state.local, **in_flight},
        lambda: [{**own, **in_flight} for own in ([state.local] if everyone is None else everyone())],
        moved,
    )


def _put_back(trainer: "Trainer", state: State) -> None:
    put_back_model(trainer, state)
    shared = state.shared
    if trainer.average is None and shared["average"] is not None:
        log.warning(
            "the moving average of update %d is dropped: ema is null, and what is saved from now on holds none",
            trainer.clock.updates,
        )
    kind, saved = type(trainer.optimizer).__name__, shared.get("optimizer_kind")
    if saved not in (None, kind):
        raise StateMismatchError(
            f"the snapshot is of a run with the optimizer {saved}, not {kind}: take {saved}, or begin another run from "
            "its weights with model.init"
        )
    trainer.strategy.load_optimizer_state(trainer.model, trainer.optimizer, shared["optimizer"])
    trainer.precision.load_state_dict(shared["scaler"])
    put_back_progress(trainer, shared)


def _check_within_plan(trainer: "Trainer") -> None:
    """Refuse to continue a run to an end that it is past already: nothing would be done, and called done."""
    clock, end = trainer.clock, trainer.plan.total_samples
    if clock.samples > end:
        raise StateMismatchError(
            f"the run is past this length already: its snapshot is of update {clock.updates:,}, after "
            f"{clock.samples:,} samples, and run.length makes it end after {end:,} samples. Give a longer run.length, "
            "or go on from an earlier snapshot, RUN@UPDATE"
        )


def put_back_own(trainer: "Trainer", own: Own, everyone: Callable[[], Sequence[Own]], moved: bool) -> None:
    """Give the strategy what it carries over: what codecs lost so far.

    To this rank its own or, where ranks or axes are others, so that the sum over ranks stays.
    """
    strategy = trainer.strategy
    fits = not moved and strategy.load_state_dict(own)
    if not all(int(each) for each in strategy.gather(torch.tensor([int(fits)]))):
        dropped = strategy.load_state_dicts(everyone())
        if dropped is not None:
            log.warning("what codecs lost before update %d is dropped: %s", trainer.clock.updates, dropped)
    for axis in strategy.tolerances():
        if trainer.decisions.latest(CODEC.format(axis=axis)) is not None:
            strategy.fall_back(axis)
