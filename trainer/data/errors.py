"""What can be wrong with data."""


class DataError(ValueError):
    """Data that is missing, damaged or of another kind than expected; the message says what to do about it."""
