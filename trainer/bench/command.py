"""The command `gradwire bench`. Nothing here imports torch before a command runs."""

import re
import secrets
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gradwire.trainer.arguments import JsonFile

bench = typer.Typer(
    name="bench",
    help="Measure what the parts cost on the machines at hand.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_PlotFile = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw a picture, PNG (needs gradwire[plot]).")
]
_BYTES = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
SIZES = "4B,256B,4KB,64KB,1MB,16MB,64MB,256MB"


@bench.callback()
def _group() -> None:
    """Measure what the parts cost on the machines at hand."""


def parse_sizes(text: str) -> dict[str, int]:
    """Float32 numbers by size, from text such as "4B,64KB,256MB" (of 1024)."""
    return {size.strip(): _bytes(size.strip()) // 4 for size in text.split(",")}


def _bytes(size: str) -> int:
    match = re.fullmatch(r"(\d+)(B|KB|MB|GB)", size)
    if match is None or int(match[1]) * _BYTES[match[2]] < 4:
        raise typer.BadParameter(
            f"{size!r} is no size; expected a number of B, KB, MB or GB, such as 64KB, 4B at least"
        )
    return int(match[1]) * _BYTES[match[2]]


def _parse_counts(text: str) -> str:
    if not all(each.isdecimal() and int(each) > 0 for each in text.split(",")):
        raise typer.BadParameter(f"{text!r} is no list of counts; expected whole numbers of at least 1, such as 1,8")
    return text


def _counts(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def parse_rate(text: str) -> float:
    """Bytes a second, from bits a second as tc writes them: "200mbit", "1gbit"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.lower())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no rate; expected bits a second, such as 200mbit or 10gbit")
    return float(match[1]) * _BITS[match[2]] / 8


def _parse_axes(text: str) -> dict[str, int]:
    from gradwire.comm import Topology, TopologyError

    try:
        return Topology.parse(text).axes
    except TopologyError as error:
        raise typer.BadParameter(str(error)) from error


def _parse_algorithms(text: str) -> str:
    from gradwire.trainer.bench.comm import algorithms

    return _chosen(text, algorithms())


def _parse_codecs(text: str) -> str:
    from gradwire.trainer.bench.comm import codecs

    return "" if text == "none" else _chosen(text, codecs())


def _chosen(text: str, known: list[str]) -> str:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return ",".join(names)


@bench.command()
def comm(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[OVERRIDES]", help="Of the launch group, such as launch.processes=4.")
    ] = None,
    axes: Annotated[
        dict[str, int] | None,
        typer.Option(
            parser=_parse_axes,
            metavar="AXES",
            help="Axes of links, fastest first, as local=2,node=2; found if not given.",
        ),
    ] = None,
    sizes: Annotated[
        dict[str, int], typer.Option(parser=parse_sizes, metavar="SIZES", help="Of the float32 tensors.")
    ] = SIZES,  # type: ignore[assignment]  # parsed as if typed
    algorithms: Annotated[
        str | None, typer.Option(parser=_parse_algorithms, metavar="NAMES", help="All if not given.")
    ] = None,
    codecs: Annotated[
        str | None,
        typer.Option(parser=_parse_codecs, metavar="NAMES", help="On the last axis; all if not given, or none."),
    ] = None,
    link: Annotated[
        float | None,
        typer.Option(parser=parse_rate, metavar="RATE", help="Of a host's link, as 200mbit; measured if not given."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Turns of each contender at each size, at most.")] = 9,
    json_file: JsonFile = None,
    plot: _PlotFile = None,
) -> None:
    """Time every all-reduce and codec at every size, beside the backend's own, and check every result."""
    arguments = {
        "axes": axes,
        "sizes": sizes,
        "algorithms": algorithms,
        "codecs": codecs,
        "link": link,
        "rounds": rounds,
    }
    _start("comm", [*_processes(axes, overrides or []), *(overrides or [])], arguments, json_file, plot)


@bench.command()
def checkpoint(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[OVERRIDES]", help="Of the launch group, such as launch.device=cpu.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Write below this folder or URL; the present folder if not given.")
    ] = None,
    mb: Annotated[float, typer.Option("--mb", min=0.01, help="MiB of weights and AdamW's moments.")] = 120.0,
    frozen: Annotated[
        float, typer.Option(min=0.0, max=0.999, help="Share of the parameters that never change, as in LoRA.")
    ] = 0.0,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that save together.")] = 1,
    rounds: Annotated[int, typer.Option(min=2, help="Turns of each contender.")] = 9,
    updates: Annotated[int, typer.Option(min=1, help="Updates between two rounds, journalled and recovered.")] = 10,
    json_file: JsonFile = None,
    plot: _PlotFile = None,
) -> None:
    """Time saving, restoring and recovering a training state beside torch's and safetensors' ways, and check it all."""
    arguments = {
        "url": f"{(url or str(Path.cwd())).rstrip('/')}/gradwire-bench-{secrets.token_hex(4)}",
        "mb": mb,
        "frozen": frozen,
        "rounds": rounds,
        "updates": updates,
    }
    _start("checkpoint", [f"launch.processes={ranks}", *(overrides or [])], arguments, json_file, plot)


@bench.command()
def inference(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OVERRIDES]", help="Of the model and launch groups, such as model=decoder_1m."),
    ] = None,
    batches: Annotated[str, typer.Option(parser=_parse_counts, metavar="COUNTS", help="Sequences at a time.")] = "1,8",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 32,
    new: Annotated[int, typer.Option("--tokens", min=2, help="New tokens of each.")] = 256,
    lengths: Annotated[
        str, typer.Option(parser=_parse_counts, metavar="COUNTS", help="Tokens at which growth is measured.")
    ] = "64,128,256,512",
    requests: Annotated[int, typer.Option(min=2, help="Requests of the mixed workload.")] = 64,
    rows: Annotated[int, typer.Option(min=1, help="Of them, served at a time.")] = 16,
    rounds: Annotated[int, typer.Option(min=2, help="Turns of each contender.")] = 9,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let the decoder and transformers compile their static caches' steps too.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Time generation with and without caches beside transformers' own, on the same weights, and check every token."""
    arguments = {
        "batches": _counts(batches),
        "prompt": prompt,
        "new": new,
        "lengths": _counts(lengths),
        "requests": requests,
        "rows": rows,
        "rounds": rounds,
        "compile": compiled,
    }
    context = max(prompt + new, *_counts(lengths))
    own = ["model=decoder_10m", f"data.context={context}", "launch.processes=1"]
    _start("inference", [*own, *(overrides or [])], arguments, json_file, None)


def _start(
    name: str, overrides: list[str], arguments: dict[str, Any], json_file: Path | None, plot: Path | None
) -> NoReturn:
    """Run a benchmark on as many ranks as the launch group says, in a temporary folder."""
    from gradwire.trainer import cli

    files = {"json": json_file, "plot": plot}
    with cli.friendly(), cli.measuring(f"bench-{name}", overrides, None, arguments, files) as prepare:
        module = import_module(f"gradwire.trainer.bench.{name}")
        from gradwire.trainer.launch.start import start

        raise typer.Exit(start(prepare, module.PROGRAM, module.measure))


def _processes(axes: dict[str, int] | None, overrides: list[str]) -> list[str]:
    """As many processes as the axes need, where nothing else is said."""
    if axes is None or any(text.lstrip("+").startswith("launch") for text in overrides):
        return []
    ranks = 1
    for size in axes.values():
        ranks *= size
    return [f"launch.processes={ranks}"]
