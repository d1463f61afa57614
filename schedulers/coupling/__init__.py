"""Couplings: published rules that plan the batch size and the learning rate together.

They contradict each other: Seesaw lowers the rate when the batch grows, critical-batch warm-up raises it, Smith's rule
leaves it. So a coupling is always chosen by name, and none goes together with a scaling rule, which would move the
rate a second time. A coupling is multiplied with the full batch, like a schedule: `512 * Seesaw(start=64)`.
"""

from gradwire.schedulers.coupling.base import BatchRule, Coupled, Coupling
from gradwire.schedulers.coupling.critical import CriticalBatchWarmup
from gradwire.schedulers.coupling.growth import GrowInsteadOfDecay, Seesaw

__all__ = ["BatchRule", "Coupled", "Coupling", "CriticalBatchWarmup", "GrowInsteadOfDecay", "Seesaw"]
