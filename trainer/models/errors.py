"""Errors of models."""


class ModelError(ValueError):
    """A model's sizes do not fit together, or an input does not fit the model."""
