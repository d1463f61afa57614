"""How the built-in decoder's layers are split among ranks that compute together (Shoeybi et al. 2019, 1909.08053)."""

from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from gradwire.trainer.errors import StrategyError
from gradwire.trainer.models.decoder import Block, Decoder


def parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split each block's attention heads and feed-forward parts over the ranks of a mesh, by torch's own plan.

    Norms and tied embeddings stay whole on every rank, whose activations between the parts are the same.

    Raises:
        StrategyError: the model is not the built-in decoder, or its heads do not divide among the ranks.
    """
    if not isinstance(model, Decoder):
        raise StrategyError(f"strategy.tensor splits the layers of the built-in decoder, not of {type(model).__name__}")
    for block in model.blocks:
        assert isinstance(block, Block), "a decoder has no others"
        if block.parts % mesh.size() or block.kv_heads % mesh.size():
            raise StrategyError(
                f"strategy.tensor={mesh.size()} must divide the decoder's kv_heads={block.kv_heads} and the "
                f"{block.parts} parts of its feed-forward width (the greatest common divisor of both)"
            )
        parallelize_module(block, mesh, _plan_of_block())
    model.shares = mesh.size()
    if not model.tied:
        whole = {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            "output": ColwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, whole)


def split_parameters(model: nn.Module, tensor: int) -> Iterator[nn.Parameter]:
    """Those that `parallelize` splits over so many ranks; none where it cannot."""
    blocks = [block for block in model.blocks if isinstance(block, Block)] if isinstance(model, Decoder) else []
    if not isinstance(model, Decoder) or any(block.parts % tensor or block.kv_heads % tensor for block in blocks):
        return
    for block in blocks:
        for name in _plan_of_block():
            yield from block.get_submodule(name).parameters()
    if not model.tied:
        yield from model.embedding.parameters()
        yield from model.output.parameters()


def _plan_of_block() -> dict[str, ParallelStyle]:
    columns = {name: ColwiseParallel() for name in ("grouped_qkv", "gate_up")}
    return {**columns, **{name: RowwiseParallel() for name in ("attend", "down")}}
