"""Data parallelism and collectives over named axes of links."""

from gradwire.comm.all_reduce import AllReduce
from gradwire.comm.attach import Overlap, attach
from gradwire.comm.buckets import Bucket
from gradwire.comm.choices import Choice, Way
from gradwire.comm.ddp_hook import ddp_hook
from gradwire.comm.encoded import Encoded, decode
from gradwire.comm.errors import (
    AttachError,
    BackwardError,
    CollectiveError,
    CommError,
    ProgramError,
    ReplicaMismatch,
    TopologyError,
)
from gradwire.comm.fabric import Fabric
from gradwire.comm.links import CodecSpeed, Link
from gradwire.comm.measure import codec_speed, measure
from gradwire.comm.momentum import DeepGradientCompression
from gradwire.comm.power_sgd import PowerSGD
from gradwire.comm.pricing import Price, price
from gradwire.comm.reducer import Observer, Reducer
from gradwire.comm.replicas import broadcast_parameters, check_replicas, replicas_hash
from gradwire.comm.simulation import Simulated
from gradwire.comm.topology import Topology
from gradwire.comm.trees import broadcast, gather, reduce, scatter
from gradwire.comm.works import Op, Work

__all__ = [
    "AllReduce",
    "AttachError",
    "BackwardError",
    "Bucket",
    "Choice",
    "CodecSpeed",
    "CollectiveError",
    "CommError",
    "DeepGradientCompression",
    "Encoded",
    "Fabric",
    "Link",
    "Observer",
    "Op",
    "Overlap",
    "PowerSGD",
    "Price",
    "ProgramError",
    "Reducer",
    "ReplicaMismatch",
    "Simulated",
    "Topology",
    "TopologyError",
    "Way",
    "Work",
    "attach",
    "broadcast",
    "broadcast_parameters",
    "check_replicas",
    "codec_speed",
    "ddp_hook",
    "decode",
    "gather",
    "measure",
    "price",
    "reduce",
    "replicas_hash",
    "scatter",
]
