"""The cases of ranks that die or stall: who is struck by what, in which phase of a job."""

import random
from dataclasses import dataclass

from gradwire.comm import Topology

PHASES = (
    "idle",
    "first reduce-scatter",
    "last reduce-scatter",
    "first all-gather",
    "last all-gather",
    "codec",
    "between buckets",
    "group creation",
    "attach",
    "native idle",
    "native under way",
)
SIGNALS = ("SIGKILL", "SIGSTOP")
TOPOLOGIES = ({"ring": 2}, {"ring": 3}, {"local": 2, "node": 2}, {"local": 3, "node": 2}, {"x": 2, "y": 2, "z": 2})
ALGORITHMS = ("ring", "bidirectional_ring", "two_shot", "halving_doubling")
CODECS = ("", "int8", "int4", "top_k", "sign")
MOMENTS = ("before start", "after start", "before finish", "after finish")


@dataclass(frozen=True)
class Case:
    """One job: who is struck by what, when."""

    phase: str
    signal: str
    axes: dict[str, int]
    algorithm: str
    codec: str
    rotate: bool
    victim: int
    moment: str
    segment: int
    sockets: bool  # gloo's, also between neighbors

    @property
    def ranks(self) -> int:
        return Topology(**self.axes).size

    @property
    def native(self) -> bool:
        return self.phase.startswith("native")


def draw(cases: int, seed: int, phases: tuple[str, ...] = PHASES) -> list[Case]:
    """Random cases; every phase with both signals comes as often as any other."""
    chooser = random.Random(seed)
    kinds = [(phase, blow) for phase in phases for blow in SIGNALS]
    drawn = []
    for number in range(cases):
        phase, blow = kinds[number % len(kinds)]
        axes = chooser.choice(TOPOLOGIES)
        codec = chooser.choice(CODECS[1:] if phase == "codec" else CODECS)
        drawn.append(
            Case(
                phase=phase,
                signal=blow,
                axes=axes,
                algorithm=chooser.choice(ALGORITHMS),
                codec="" if phase.startswith("native") else codec,
                rotate=chooser.random() < 0.25,
                victim=chooser.randrange(Topology(**axes).size),
                moment=chooser.choice(MOMENTS),
                segment=chooser.randrange(8),
                sockets=number // 2 % 2 == 1,
            )
        )
    return drawn
