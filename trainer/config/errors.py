"""What is wrong with a configuration: one `Mistake` for each thing to mend, all of them in one `ConfigError`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """One thing to mend.

    Args:
        key: The key it is about, dotted from the root; empty where it is about a file or an override as a whole.
        where: Where that was written: `conf/data/text.yaml:3`, `override 'data.contxt=64'`.
        message: What is wrong and what was expected.
        suggestion: The nearest right name or value, where there is one.
    """

    key: str
    where: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        place = f"{self.key} ({self.where})" if self.key and self.where else self.key or self.where
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{place}: {self.message}{hint}" if place else f"{self.message}{hint}"


class ConfigError(ValueError):
    """The configuration cannot be used; `str` of it has one line for each mistake.

    Args:
        mistakes: At least one.
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(" ".join(str(mistake).split()) for mistake in self.mistakes))


class TargetError(ValueError):
    """A `_target_` is not allowed, does not exist, or cannot be configured.

    Args:
        message: What is wrong.
        suggestion: The nearest right target, where there is one.
    """

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        self.message = message
        self.suggestion = suggestion
        super().__init__(f"{message}; did you mean {suggestion}?" if suggestion else message)
