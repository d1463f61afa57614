"""Ways to spread training over processes."""

from typing import TYPE_CHECKING, Any

from gradwire.trainer.strategies.base import Strategy
from gradwire.trainer.strategies.data_parallel import DataParallel
from gradwire.trainer.strategies.exchanges import Cost, Pending, Reduced
from gradwire.trainer.strategies.single import Single

if TYPE_CHECKING:
    from gradwire.trainer.strategies.deepspeed import DeepSpeed
    from gradwire.trainer.strategies.diloco import DiLoCo
    from gradwire.trainer.strategies.sharded import FullySharded

__all__ = ["Cost", "DataParallel", "DeepSpeed", "DiLoCo", "FullySharded", "Pending", "Reduced", "Single", "Strategy"]


def __getattr__(name: str) -> Any:
    if name == "FullySharded":  # torch's FSDP takes a while to import, and most runs do without
        from gradwire.trainer.strategies.sharded import FullySharded

        return FullySharded
    if name == "DiLoCo":
        from gradwire.trainer.strategies.diloco import DiLoCo

        return DiLoCo
    if name == "DeepSpeed":
        from gradwire.trainer.strategies.deepspeed import DeepSpeed

        return DeepSpeed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
