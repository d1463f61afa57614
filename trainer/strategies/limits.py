"""What a strategy cannot do, refused before a run begins."""

from gradwire.trainer.errors import OverlapError, StrategyError
from gradwire.trainer.strategies.base import Strategy


def check_limits(strategy: Strategy, *, measures: bool, scaled: bool, averaged: bool) -> None:
    """Refuse a run that asks for more than its strategy can do.

    Args:
        strategy: Of the run.
        measures: Whether the plan follows the noise scale.
        scaled: Whether the loss is scaled, as fp16 needs it.
        averaged: Whether a moving average of the weights is kept.

    Raises:
        OverlapError: gradients come late, and something needs them at once.
        StrategyError: something needs the gradients of all hosts, or of single micro-batches, which nobody sees, or
            would be each host's own.
    """
    if strategy.late:
        _check_late(measures=measures, scaled=scaled)
    if strategy.apart:
        _check_apart(measures=measures, scaled=scaled, averaged=averaged)
    reason = strategy.unmeasurable()
    if reason is not None and measures:
        raise StrategyError(f"the plan follows the noise scale, which cannot be measured: {reason}")


def sees_noise(strategy: Strategy) -> bool:
    """Whether the noise scale can be measured where this strategy trains."""
    return not strategy.late and not strategy.apart and strategy.unmeasurable() is None


def _check_late(*, measures: bool, scaled: bool) -> None:
    """Refuse what needs the gradients of an update in that update."""
    if measures:
        raise OverlapError("the plan follows the noise scale, which is not measured where gradients come late")
    if scaled:
        raise OverlapError("fp16 scales the loss, and gradients that come late have another scale: use bf16 or fp32")


def _check_apart(*, measures: bool, scaled: bool, averaged: bool) -> None:
    """Refuse what needs the gradients of all hosts, or what each host would have of its own."""
    refused = {
        "the plan follows the noise scale, which nobody sees": measures,
        "each host would have a loss scale of its own in fp16": scaled,
        "each host would keep a moving average of its own": averaged,
    }
    for reason in (reason for reason, found in refused.items() if found):
        raise StrategyError(f"{reason} where hosts train by themselves: leave it out, or use DataParallel")
