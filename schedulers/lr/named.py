"""A warm-up and what follows it, by the names under which papers and YAML know the two together."""

from gradwire.schedulers.arguments import checked
from gradwire.schedulers.duration import Duration
from gradwire.schedulers.errors import ScheduleError
from gradwire.schedulers.lr.decays import Cosine, InverseSquareRoot, LinearDecay
from gradwire.schedulers.lr.warmup import Warmup
from gradwire.schedulers.schedule import Constant, Joined


@checked(ScheduleError)
class WarmupLinearDecay(Joined):
    """Linear warm-up, then linear decay until the end of the run: `Warmup(warmup).then(LinearDecay(floor))`.

    Source: Bergsma et al. 2025 (arXiv 2502.15938).

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        floor: Factor at the end of the run, 0 to 1.
    """

    def __init__(self, warmup: Duration | str = "10%", floor: float = 0.0) -> None:
        super().__init__(Warmup(warmup), LinearDecay(floor))


@checked(ScheduleError)
class WarmupCosine(Joined):
    """Linear warm-up, then half a cosine: `Warmup(warmup).then(Cosine(floor, length))`.

    Source: Loshchilov & Hutter 2017 (arXiv 1608.03983); to a tenth of the peak as in GPT-3
    (Brown et al. 2020, arXiv 2005.14165, appendix B), which stays there after 260e9 tokens.

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        floor: Factor at the end, 0 to 1.
        length: How long the rate falls before it stays at the floor; null for until the end of the run.
    """

    def __init__(
        self, warmup: Duration | str = "10%", floor: float = 0.1, length: Duration | str | None = None
    ) -> None:
        super().__init__(Warmup(warmup), Cosine(floor, length))


@checked(ScheduleError)
class WarmupConstant(Joined):
    """Linear warm-up, then the peak until the end of the run: `Warmup(warmup).then(Constant())`.

    Source: Goyal et al. 2017 (arXiv 1706.02677, section 2.2) without its later steps.

    Args:
        warmup: How long the rate rises; `0%` for no warm-up.
        start: Factor that the rise begins from, 0 to 1.
    """

    def __init__(self, warmup: Duration | str = "10%", start: float = 0.0) -> None:
        super().__init__(Warmup(warmup, start), Constant())


@checked(ScheduleError)
class WarmupInverseSquareRoot(Joined):
    """Linear warm-up over W, then √(W/s) of all samples s: `Warmup(warmup).then(InverseSquareRoot(warmup))`.

    Source: Vaswani et al. 2017 (arXiv 1706.03762, equation 3), relative to its peak.

    Args:
        warmup: How long the rate rises; it sets how fast the rate falls afterwards. In updates it is counted anew
            after the warm-up, which matters where the batch size changes.

    Raises:
        ScheduleError: `warmup` is zero.
    """

    def __init__(self, warmup: Duration | str = "10%") -> None:
        super().__init__(Warmup(warmup), InverseSquareRoot(warmup))
