"""What is done block by block: compiling and activation checkpointing.

Compiled per block, a model's backward pass is several graphs, and gradients can cross the network between them.
"""

import functools

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model: the members of its longest ModuleList, or the model itself where it has none."""
    longest: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) > max(len(longest), 1):
            longest = list(module)
    return longest or [model]


def checkpoint_activations(model: nn.Module) -> None:
    """Keep only each block's inputs in the forward pass and recompute the rest in backward (Chen 2016, 1604.06174)."""
    for block in blocks_of(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def compile_blocks(model: nn.Module) -> None:
    """Compile each block by itself (torch.compile); parameter names stay as they are."""
    for block in blocks_of(model):
        block.compile()
