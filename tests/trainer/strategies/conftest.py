"""A laboratory of networks."""

from tests.comm.netlab import lab_ranks, netlab

__all__ = ["lab_ranks", "netlab"]  # fixtures
