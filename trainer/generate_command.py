"""The command `gradwire generate`. Nothing here imports torch before the command runs."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradwire.trainer.arguments import ConfigDir, Overrides, Run
from gradwire.trainer.launch.streams import say

if TYPE_CHECKING:
    from gradwire.inference import Caching, Completion, Sampling, Stop
    from gradwire.trainer.text_model import TextModel

_ASK = "> "


def generate(
    run: Run,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text to continue; may be repeated.")] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="F", help="A file with a prompt in each line; - reads standard input.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="New tokens of each text, at most.")] = 200,
    samples: Annotated[int, typer.Option(min=1, help="Continuations of each prompt.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="Divides the logits; 0 takes the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from so many likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest tokens that have this probability together.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens at least so probable, relative to the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1, tokens that the text has already become less likely.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Ends a text; may be repeated.")] = None,
    cache: Annotated[
        str, typer.Option(metavar="KIND", help="contiguous, static, paged, or none to compute every token again.")
    ] = "contiguous",
    precision: Annotated[str, typer.Option(metavar="P", help="Of the cache: model, or int8.")] = "model",
    limit: Annotated[
        str, typer.Option(metavar="WHAT", help="Past the length: error, or window to go on with the last tokens.")
    ] = "error",
    length: Annotated[
        int | None, typer.Option(min=1, help="Most tokens that are kept; the model's context if not given.")
    ] = None,
    kept: Annotated[int, typer.Option(min=0, help="First tokens that a window never lets go.")] = 4,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile a step of one token; takes a while, and --cache static.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, help="Prompts that are continued at a time.")] = 16,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write texts, tokens and log-probabilities to this file too."),
    ] = None,
) -> None:
    """Continue text with a run's newest checkpoint, or RUN@UPDATE: --prompt, --file, or line by line as you type."""
    from gradwire.trainer.cli import check_files, friendly

    with friendly():
        check_files(json_file, None)
        given = _given(prompt, file)
        if given is None and json_file is not None:
            raise typer.BadParameter("--json needs --prompt or --file")
        if compiled and cache != "static":
            raise typer.BadParameter(f"--compile needs --cache static, found {cache}")
        from gradwire.inference import Caching, Sampling, Stop

        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
        caching = Caching(cache, limit, length, kept, precision)  # type: ignore[arg-type]  # checked there
        model = _load(run, overrides or [], config_dir, compiled=compiled)
        stops = Stop(strings=tuple(stop or ()), decode=model.decode)
        writer = _Writer(model, tokens, samples, seed, sampling, stops, caching)
        if given is None:
            _converse(writer)
            return
        written = list(writer.write(given, batch))
        if json_file is not None:
            _write_json(json_file, run, model.update, written)


@dataclass(frozen=True)
class Written:
    """One text.

    Attributes:
        prompt: What was continued.
        text: What was added.
        tokens: Its ids.
        logprobs: Natural logarithms of their probabilities by the model.
        finish: Why it ends: `length` or `stop`.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str


@dataclass(frozen=True)
class _Writer:
    """Continues prompts and shows what comes."""

    model: "TextModel"
    tokens: int
    samples: int
    seed: int
    sampling: "Sampling"
    stop: "Stop"
    caching: "Caching"

    def write(self, prompts: Sequence[str], batch: int) -> Iterator[Written]:
        """Continue prompts, a batch at a time. One text alone is shown as it comes, several each when it is done."""
        if len(prompts) * self.samples == 1:
            yield self.show(prompts[0])
            return
        from gradwire.inference import generate
        from gradwire.inference.sampling import seeds_of

        seeds = seeds_of(self.seed, len(prompts) * self.samples)
        for start in range(0, len(prompts), batch):
            some = prompts[start : start + batch]
            found = generate(
                self.model.model,
                [self.model.tokens_of(each) for each in some],
                self.tokens,
                self.sampling,
                samples=self.samples,
                seed=seeds[start * self.samples : (start + len(some)) * self.samples],
                stop=self.stop,
                caching=self.caching,
            )
            for number, each in enumerate(found):
                written = self._written(some[each.prompt], each)
                say(f"--- prompt {start + each.prompt + 1}, sample {number % self.samples + 1} ({each.finish})")
                say(written.prompt + written.text)
                yield written

    def show(self, prompt: str) -> Written:
        """Continue one prompt, each piece of text as soon as it is certain."""
        from gradwire.inference import TextStream, stream_tokens
        from gradwire.inference.completion import completion

        stream, came = TextStream(self.model.decode, self.stop), []
        say(prompt, end="")
        for token in stream_tokens(
            self.model.model,
            [self.model.tokens_of(prompt)],
            self.tokens,
            self.sampling,
            seed=self.seed,
            stop=self.stop,
            caching=self.caching,
        ):
            came.append(token)
            say(stream.push(token.id), end="")
        say(stream.close())
        return self._written(prompt, completion(0, came))

    def _written(self, prompt: str, found: "Completion") -> Written:
        text = self.stop.cut(self.model.decode(found.tokens))
        return Written(prompt, text, found.tokens, found.logprobs, found.finish)


def _given(prompts: list[str] | None, file: Path | None) -> list[str] | None:
    """The prompts that the command names; None where it names none, and somebody types them."""
    if prompts is not None and file is not None:
        raise typer.BadParameter("give either --prompt or --file")
    if file is None:
        return prompts
    name, text = ("standard input", sys.stdin.read()) if str(file) == "-" else (str(file), file.read_text())
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise typer.BadParameter(f"{name} holds no prompt: expected one in each line")
    return lines


def _load(run: str, overrides: list[str], config_dir: Path | None, *, compiled: bool) -> "TextModel":
    from gradwire.trainer.checkpoint_reference import Reference
    from gradwire.trainer.cli import checked
    from gradwire.trainer.config import load_resolved
    from gradwire.trainer.config.contradictions import contradictions_of_evaluation
    from gradwire.trainer.launch.errors import RunNotFoundError
    from gradwire.trainer.launch.run_directory import CONFIG

    reference = Reference.parse(run)
    if reference.run is None:
        raise RunNotFoundError(f"{run} does not say which model its weights are of: name the run directory instead")
    valid = checked(load_resolved(reference.run / CONFIG, overrides, config_dir), contradictions_of_evaluation)
    from gradwire.trainer.text_model import TextModel

    model = TextModel.load(valid.config, valid.allow_targets, reference)
    return _compiled(model) if compiled else model


def _compiled(model: "TextModel") -> "TextModel":
    from gradwire.inference import CachedModel, Compiled, UnsuitedModelError

    if not isinstance(model.model, CachedModel):
        raise UnsuitedModelError(f"{type(model.model).__name__} takes no cache: it cannot be compiled for one")
    return replace(model, model=Compiled(model.model))


def _converse(writer: _Writer) -> None:
    """Continue what is typed, line by line, until there is no more."""
    asking = sys.stdin.isatty()
    if asking:
        say(f"update {writer.model.update:,}; a line is continued, an empty one (or Ctrl-D) ends")
    while True:
        if asking:
            say(_ASK, end="")
        line = sys.stdin.readline().rstrip("\n")
        if not line:
            return
        writer.show(line)


def _write_json(file: Path, run: str, update: int, written: Sequence[Written]) -> None:
    import json

    from gradwire.trainer import named_files

    record: dict[str, Any] = {"run": run, "update": update, "texts": [asdict(each) for each in written]}
    named_files.write(file, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
