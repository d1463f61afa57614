"""Datasets of the user's own, training and validation named separately."""

from typing import Annotated, Any

from gradwire.trainer.config.range import Range
from gradwire.trainer.data.parts import check_context
from gradwire.trainer.data.stream import Ordered, length_of


class Pair:
    """Two datasets of the user's own, each a `_target_` with its arguments.

    Args:
        train: A map-style dataset to train on.
        validation: A map-style dataset to evaluate on; null evaluates on nothing.
        context: Tokens of a sample, where the samples are sequences.
        vocabulary: All token ids are below this, where the samples are sequences.

    Raises:
        DataError: a dataset is not map-style, or is empty.
    """

    def __init__(
        self,
        train: Any,
        validation: Any = None,
        context: Annotated[int, Range(ge=1)] = 1,
        vocabulary: Annotated[int, Range(ge=1)] | None = None,
    ) -> None:
        if not isinstance(train, Ordered):
            length_of(train)
        if validation is not None:
            length_of(validation)
        self.train = train
        self.validation = validation
        self.context = check_context(context)
        self.vocabulary = vocabulary
