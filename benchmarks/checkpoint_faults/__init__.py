"""Faults at every operation of saving: what survives them, in gradwire.checkpoint and beside it."""
