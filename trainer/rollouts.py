"""Rollouts: continuations of fixed prompts, written every so often while a model trains."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from gradwire.schedulers import Clock, Duration
from gradwire.trainer.callbacks import Callback
from gradwire.trainer.config.range import Range
from gradwire.trainer.errors import StateMismatchError
from gradwire.trainer.triggers import Every

if TYPE_CHECKING:
    from gradwire.trainer.trainer import Trainer
    from gradwire.trainer.update import Outcome
    from gradwire.trainer.writing import Text

FILE = "rollouts.jsonl"


class Rollouts(Callback):
    """Has the model continue prompts every so often, and appends what it writes to rollouts.jsonl in the run's folder.

    A subclass that does something else with the texts (rewards, filters, a new data set) overrides `receive`.

    Args:
        prompts: Texts to continue.
        every: How often, as a duration: `100 updates`.
        samples: Continuations of each prompt.
        length: New tokens of each.
        temperature: Sampling temperature; 0 takes the likeliest token.
    """

    def __init__(
        self,
        prompts: list[str],
        every: Duration | str = "100 updates",
        samples: Annotated[int, Range(ge=1)] = 1,
        length: Annotated[int, Range(ge=1)] = 100,
        temperature: Annotated[float, Range(ge=0)] = 1.0,
    ) -> None:
        self._prompts, self._samples = list(prompts), samples
        self._every = Duration.parse(every)
        self._length, self._temperature = length, temperature
        self._before = Clock()

    def on_start(self, trainer: "Trainer") -> None:
        self._before = trainer.clock
        if trainer.writing is None:
            raise StateMismatchError("rollouts need data that turns text into tokens and back")

    def on_update(self, trainer: "Trainer", outcome: "Outcome") -> None:
        before, self._before = self._before, trainer.clock
        if not Every(self._every, trainer.plan).due(before, trainer.clock):
            return
        assert trainer.writing is not None, "checked at the start"
        writing = replace(trainer.writing, length=self._length, temperature=self._temperature)
        texts = writing.write(
            trainer.model,
            trainer.strategy,
            self._prompts,
            samples=self._samples,
            purpose="rollout",
            update=trainer.clock.updates,
        )
        self.receive(trainer, texts)

    def receive(self, trainer: "Trainer", texts: "Sequence[Text]") -> None:
        """Called on every rank with the same texts: `samples` of the first prompt, then those of the next."""
        if trainer.strategy.rank != 0 or trainer.run.directory is None:
            return
        with (trainer.run.directory / FILE).open("a", encoding="utf-8") as file:
            for each in texts:
                file.write(json.dumps({"update": trainer.clock.updates} | asdict(each)) + "\n")
