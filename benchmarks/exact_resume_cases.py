"""The cases of exact resume: what is trained, and how it is interrupted."""

import itertools
from dataclasses import dataclass

UPDATES = 24
MOVED_UPDATES = 50
MODELS = {
    "decoder": [
        "model=decoder_1m",
        "model.width=64",
        "model.layers=2",
        "model.heads=2",
        "model.kv_heads=1",
        "model.dropout=0.1",
        "data.context=32",
        "evaluation.limit=64",
        "evaluation.samples=0",
    ],
    "convnet": ["experiment=digits", "model.dropout=0.1", "evaluation.limit=64", "evaluation.samples=0"],
}
COMMON = [
    f"run.length={UPDATES} updates",
    "run.log_every=1",
    "evaluation.every=8 updates",
    "evaluation.batch=16",
    "checkpoint.every=5 updates",
    "checkpoint.keep=100",
    "batch.size=24",
    "ema=0.9",
    "optimizer.lr=0.003",
    "logger=none",
    "launch.device=cpu",
]
_LENGTH = "run.length=576 samples"
_GROWS = ["batch.granule=2", "batch.schedule.start=6", "noise_scale.every=2 updates", _LENGTH]
PLANS = {  # besides the constant batch: each changes batch size or learning rate while the run goes on
    "linear_warmup, sqrt": ["batch=linear_warmup", "batch.schedule.length=50%", "scaling=sqrt", _LENGTH],
    "doubling": ["batch=doubling", "batch.schedule.every=150 samples", *_GROWS],
    "seesaw": ["batch=seesaw", "lr=warmup_linear", *_GROWS],
    "grow_instead_of_decay": ["batch=grow_instead_of_decay", "lr=warmup_linear", *_GROWS],
    "critical, measured": ["batch=critical", *_GROWS],
    "noise_scale": ["batch=noise_scale", "batch.schedule.hysteresis=1.1", *_GROWS],
    "adascale": ["scaling=adascale", "scaling.reference=6", "noise_scale.every=2 updates", _LENGTH],
}

_CODECS = ("fp16", "bf16", "fp8", "int8", "int4", "sign", "top_k", "random_k", "power_sgd")
_HOSTS = "comm=hierarchical"
COMMS = {  # how gradients travel, by name: every codec between two pretended hosts, and other topologies
    **{f"codec {name}": [_HOSTS, f"comm/codec@comm.codecs.node={name}"] for name in _CODECS},
    "codec int4, stochastic, rotated": [
        _HOSTS,
        "comm/codec@comm.codecs.node=int4",
        "comm.codecs.node.rounding=stochastic",
        "comm.codecs.node.hadamard=true",
    ],
    "codec int8 and int4 on both axes": [
        _HOSTS,
        "comm/codec@comm.codecs.local=int8",
        "comm/codec@comm.codecs.node=int4",
    ],
    "codec dgc, warming up": [
        _HOSTS,
        "comm/codec@comm.codecs.node=dgc",
        "comm.codecs.node.ratio=0.05",
        "comm.codecs.node.warmup=12",
    ],
    "codec top_k within hosts, int4 between": [
        _HOSTS,
        "comm/codec@comm.codecs.local=top_k",
        "comm/codec@comm.codecs.node=int4",
    ],
    "codec int4, one update late": [_HOSTS, "comm/codec@comm.codecs.node=int4", "comm.overlap=update"],
    "codec int4 on a ring, one update late": [
        "comm=ring",
        "comm/codec@comm.codecs.ring=int4",
        "comm.overlap=update",
    ],
    "one update late": ["comm=native", "comm.overlap=update"],
    "codec top_k on a ring": ["comm=ring", "comm/codec@comm.codecs.ring=top_k", "comm.codecs.ring.ratio=0.1"],
    "codec sign on a torus": ["comm=torus", "comm/codec@comm.codecs.y=sign"],
    "diloco": [_HOSTS, "strategy=diloco", "strategy.every=4", "ema=null"],
    "diloco, int4, streaming": [
        _HOSTS,
        "comm/codec@comm.codecs.node=int4",
        "strategy=diloco",
        "strategy.every=8",
        "strategy.fragments=2",
        "strategy.overlap=3",
        "ema=null",
    ],
    "ring": ["comm=ring"],
    "hierarchical": [_HOSTS],
    "torus": ["comm=torus"],
}


@dataclass(frozen=True)
class Case:
    """One kind of run and one way to interrupt it."""

    model: str
    precision: str
    ranks: int
    accumulation: int
    how: str  # SIGKILL or SIGTERM
    plan: str = ""
    comm: str = ""

    def overrides(self) -> list[str]:
        share = -(-24 // self.ranks)
        return [
            *COMMON,
            *MODELS[self.model],
            *PLANS.get(self.plan, []),
            *communication(self.comm, self.ranks),
            f"precision={self.precision}",
            f"launch.processes={self.ranks}",
            f"batch.micro={-(-share // self.accumulation)}",
        ]

    def __str__(self) -> str:
        kind = f"{self.model} {self.precision} ranks={self.ranks} accumulation={self.accumulation}"
        return " ".join(filter(None, [kind, self.plan, self.comm, self.how]))


def communication(comm: str, ranks: int) -> list[str]:
    """The overrides of a case's `comm`, with as many ranks on two axes as there are."""
    chosen = COMMS.get(comm, [])
    axes = {"comm=hierarchical": ("local", "node"), "comm=torus": ("x", "y")}.get(chosen[0]) if chosen else None
    return [*chosen, f"comm.topology={{{axes[0]}: 2, {axes[1]}: {ranks // 2}}}"] if axes else chosen


@dataclass(frozen=True)
class Move:
    """A run that goes on with another number of ranks than it began with."""

    before: int
    after: int

    def overrides(self) -> list[str]:
        plain = Case("decoder", "fp32", self.before, 1, "SIGTERM").overrides()
        return [*plain, "model.dropout=0.0", f"run.length={MOVED_UPDATES} updates"]

    def __str__(self) -> str:
        return f"decoder fp32 ranks={self.before} then ranks={self.after}"


def all_cases() -> list[Case | Move]:
    choices = itertools.product(MODELS, ("fp32", "bf16"), (1, 2, 4), (1, 3), ("SIGKILL", "SIGTERM"))
    moves = [Move(1, 3), Move(2, 1), Move(2, 4), Move(3, 2), Move(4, 1)]
    plans = [Case("decoder", "fp32", ranks, 6, "SIGKILL", plan) for plan in PLANS for ranks in (1, 2)]
    comms = [Case("decoder", "fp32", 4, 1, how, comm=comm) for comm in COMMS for how in ("SIGKILL", "SIGTERM")]
    scaled = [Case("decoder", "fp16", 4, 3, "SIGKILL", comm=f"codec {name}") for name in ("int4", "top_k")]
    return [*(Case(*choice) for choice in choices), *plans, *comms, *scaled, *moves]
