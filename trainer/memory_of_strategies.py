"""What each strategy makes of a model's memory: how much of it a rank keeps, and what it gathers for a while."""

from dataclasses import dataclass

TENSOR = 2  # neighbors that split layers where nothing else was said
_BUCKET = 4 * 500_000_000  # DeepSpeed's reduce_bucket_size
_LIVE = 4 * 1_000_000_000  # its stage3_max_live_parameters


@dataclass(frozen=True)
class Whole:
    """Bytes of a model that lies on one rank.

    Args:
        weights: Parameters and buffers.
        gradients: Of the trained ones.
        optimizer: What the optimizer keeps.
        average: Of the moving average of the weights.
        block: Parameters of the largest block.
        activations: What autograd keeps of one pass.
        split: Of the weights, those that ranks of `tensor_parallel` split.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    block: int
    activations: int
    split: int = 0

    @property
    def together(self) -> int:
        """Of what stays from update to update."""
        return self.weights + self.gradients + self.optimizer + self.average


def needed(whole: Whole, ranks: int, hosts: int, *, accumulates: bool) -> dict[str, tuple[int, int, int]]:
    """By strategy, what a rank keeps, gathers for a while, and holds of activations.

    Args:
        whole: On one rank.
        ranks: How many.
        hosts: Replicas of hybrid sharding.
        accumulates: Whether an update has several passes; gathered weights then have their gradients meanwhile.
    """
    together, gathered = whole.together, _gathered(whole, accumulates=accumulates)
    sharded = {"fsdp": ranks, "hsdp": max(ranks // hosts, 1)}
    found = {"ddp": (together, 0, whole.activations)}
    for name, parts in sharded.items():
        found[name] = (-(-together // parts), gathered if parts > 1 else 0, whole.activations)
    found |= {f"deepspeed {stage}": zero(whole, ranks, stage) for stage in (1, 2, 3)}
    if hosts > 1:
        outer = 3 * whole.gradients  # parameters, velocity and gradient of the outer optimizer
        found["diloco"] = (together + outer, 0, whole.activations)
    return found


def zero(whole: Whole, ranks: int, stage: int) -> tuple[int, int, int]:
    """As `needed`, of ZeRO's stages in DeepSpeed's own sizes of what it holds at a time."""
    parted = whole.optimizer + whole.average + whole.gradients  # a copy of the weights; at stage 3 gradients
    kept = whole.weights + whole.gradients if stage == 1 else whole.weights
    parted += {1: 0, 2: whole.gradients, 3: whole.weights}[stage]
    gathered = min(_BUCKET, whole.gradients)
    if stage == 3:
        kept, gathered = 0, gathered + min(_LIVE, whole.weights)
    return kept + -(-parted // ranks), gathered if ranks > 1 else 0, whole.activations


def split(whole: Whole, ranks: int, tensor: int, *, accumulates: bool) -> tuple[int, int, int]:
    """As `needed`, where `tensor` neighbors split layers; what they do not is on each of them."""
    share = whole.split / whole.weights
    left = share / tensor + 1 - share  # of the model, in the eyes of a rank
    gathered = _gathered(whole, accumulates=accumulates) if ranks > tensor else 0
    return round(whole.together * left * tensor / ranks), round(gathered * left), whole.activations


def _gathered(whole: Whole, *, accumulates: bool) -> int:
    return 2 * whole.block + (whole.gradients if accumulates else whole.block)  # this block, and the next one
