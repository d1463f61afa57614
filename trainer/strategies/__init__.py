"""Ways to spread training over processes."""

from gradwire.trainer.strategies.base import Cost, Pending, Reduced, Strategy
from gradwire.trainer.strategies.data_parallel import DataParallel
from gradwire.trainer.strategies.single import Single

__all__ = ["Cost", "DataParallel", "Pending", "Reduced", "Single", "Strategy"]
