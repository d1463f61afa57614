"""torch.distributed.checkpoint on a store: any framework's sharded state, incremental, verified, without pickle.

    import torch.distributed.checkpoint as dcp
    from gradwire.checkpoint.dcp import Reader, Writer

    dcp.save(state_dict, storage_writer=Writer(url, update=100))
    dcp.load(state_dict, storage_reader=Reader(url))            # at any number of ranks

Every rank writes one part of a snapshot. The commit is written last and by the coordinator: a save that failed anywhere
leaves the last one. torch raises what went wrong on a rank as CheckpointException, with our errors in its `failures`.
"""

from gradwire.checkpoint.dcp.reader import Reader
from gradwire.checkpoint.dcp.writer import Writer

__all__ = ["Reader", "Writer"]
