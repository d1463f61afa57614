"""Data parallelism and collectives over named axes of links."""

from gradwire.comm.all_reduce import AllReduce, Op, Work
from gradwire.comm.attach import attach
from gradwire.comm.buckets import Bucket
from gradwire.comm.errors import (
    AttachError,
    BackwardError,
    CollectiveError,
    CommError,
    ReplicaMismatch,
    TopologyError,
)
from gradwire.comm.reducer import Observer, Reducer
from gradwire.comm.replicas import broadcast_parameters, check_replicas, replicas_hash
from gradwire.comm.topology import Topology

__all__ = [
    "AllReduce",
    "AttachError",
    "BackwardError",
    "Bucket",
    "CollectiveError",
    "CommError",
    "Observer",
    "Op",
    "Reducer",
    "ReplicaMismatch",
    "Topology",
    "TopologyError",
    "Work",
    "attach",
    "broadcast_parameters",
    "check_replicas",
    "replicas_hash",
]
