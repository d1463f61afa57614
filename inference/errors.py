"""Errors of generation."""


class InferenceError(ValueError):
    """Generation was asked for something impossible."""


class CacheFullError(InferenceError):
    """More tokens than a cache holds, or than its model knows positions for."""


class UnsuitedModelError(InferenceError):
    """A model cannot be used with the cache that was asked for."""
