"""Sweeps: a search over keys of the configuration, each trial of which is one ordinary launch."""
