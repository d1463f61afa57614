"""What a strategy cannot do is refused, whichever strategy it is."""

import pytest

from gradwire.trainer.errors import OverlapError, StrategyError, TrainerError
from gradwire.trainer.strategies import Single, Strategy
from gradwire.trainer.strategies.limits import check_limits, sees_noise


class Late(Single):
    late = True


class Apart(Single):
    apart = True


class Blind(Single):
    def unmeasurable(self) -> str:
        return "it looks away"


@pytest.mark.parametrize(
    ("strategy", "asked", "error", "words"),
    [
        (Late(), "measures", OverlapError, "not measured where gradients come late"),
        (Late(), "scaled", OverlapError, "fp16 scales the loss"),
        (Apart(), "measures", StrategyError, "which nobody sees where hosts train by themselves"),
        (Apart(), "scaled", StrategyError, "a loss scale of its own in fp16"),
        (Apart(), "averaged", StrategyError, "a moving average of its own"),
        (Blind(), "measures", StrategyError, "cannot be measured: it looks away"),
    ],
)
def test_what_a_strategy_cannot_do_is_refused(
    strategy: Strategy, asked: str, error: type[TrainerError], words: str
) -> None:
    wanted = {"measures": False, "scaled": False, "averaged": False}
    check_limits(strategy, **wanted)
    check_limits(Single(), **wanted | {asked: True})
    assert sees_noise(Single()) and not sees_noise(strategy)
    with pytest.raises(error, match=words):
        check_limits(strategy, **wanted | {asked: True})
