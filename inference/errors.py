"""Errors of generation."""


class InferenceError(ValueError):
    """Generation was asked for something impossible."""
