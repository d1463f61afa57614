"""What is done block by block: compiling and activation checkpointing.

Compiled per block, a model's backward pass is several graphs, and gradients can cross the network between them.
"""

import functools
import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

_GRAPHS = 8  # torch's own limit


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
        keep_inputs = functools.partial(checkpoint, use_reentrant=False)
        if _statistics(block):
            keep_inputs = functools.partial(keep_inputs, context_fn=functools.partial(_contexts, block))
        block.forward = functools.partial(keep_inputs, block.forward)


def _statistics(block: nn.Module) -> list[nn.Module]:
    """The layers that follow each batch with running statistics."""
    return [module for module in block.modules() if isinstance(module, _NormBase) and module.track_running_stats]


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What surrounds a block's forward pass, and its recomputation."""
    return nullcontext(), _statistics_aside(block)


@contextmanager
def _statistics_aside(block: nn.Module) -> Iterator[None]:
    """Within the block running statistics are copies, or a recomputation would count every batch twice."""
    own = [(layer, dict(layer._buffers)) for layer in _statistics(block)]
    for layer, buffers in own:
        layer._buffers.update({name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()})
    try:
        yield
    finally:
        for layer, buffers in own:
            layer._buffers.update(buffers)


def compile_blocks(model: nn.Module) -> None:
    """Compile each block by itself (torch.compile); parameter names stay as they are.

    torch keeps so many graphs a function, then gives up compiling it. Blocks of other widths are other graphs of the
    same function, so each kind of block is allowed that many.
    """
    blocks = blocks_of(model)
    kinds = {(type(block), *(weight.shape for weight in block.parameters())) for block in blocks}
    dynamo: Any = importlib.import_module("torch._dynamo.config")  # takes seconds to import, as compiling does anyway
    dynamo.recompile_limit = max(dynamo.recompile_limit, _GRAPHS * len(kinds))
    for block in blocks:
        block.compile()


@contextmanager
def eagerly(model: nn.Module) -> Iterator[None]:
    """Within the block nothing is compiled: the shapes of generation change with every token."""
    if any(module._compiled_call_impl is not None for module in model.modules()):
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield
