"""One rank of a network laboratory: joins the others by gloo and calls what comes through its pipe.

Started by `benchmarks.netlab_ranks` as `python -m benchmarks.netlab_worker FILE_DESCRIPTOR TIMEOUT`.
"""

import os
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection


def main() -> None:
    orders, timeout = Connection(int(sys.argv[1])), timedelta(seconds=float(sys.argv[2]))
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timeout)
    rank = dist.get_rank()
    orders.send((0, None, None))
    while True:
        try:
            call, function, arguments = orders.recv()
        except EOFError:  # nobody is left to ask
            os._exit(0)  # at once: on its way down, an interpreter can abort over gloo's threads
        torch.manual_seed(0)
        try:
            orders.send((call, function(rank, *arguments), None))
        except BaseException:
            orders.send((call, None, traceback.format_exc()))


if __name__ == "__main__":
    main()
