"""All-reduce algorithms over a line of ranks, and trees."""

from gradwire.comm.algorithms.halving_doubling import HalvingDoubling
from gradwire.comm.algorithms.ring import Ring
from gradwire.comm.algorithms.tree import Tree
from gradwire.comm.algorithms.two_shot import TwoShot

__all__ = ["HalvingDoubling", "Ring", "Tree", "TwoShot"]
