"""What the commands of `gradwire` take, with what their help says about it."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OVERRIDES]", help="Hydra's grammar: key=value, group=option, +new=value, ~key."),
]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder of your own YAML, searched before gradwire's.")]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the numbers to this file too.")]
Links = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=RATE,LATENCY",
        help="A link, such as node=200mbit,1ms: foretells communication on 1, 10, 100 and 1000 times the hosts.",
    ),
]
PngFile = Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw a picture (needs gradwire[plot]).")]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@UPDATE]", help="A run directory, or its name under runs/; RUN@UPDATE for one checkpoint."
    ),
]
Prove = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="[K]",
        help="First replay K journalled updates (20) and compare what comes out; if that is something else, end with 3 "
        "and change nothing.",
    ),
]
Again = Annotated[
    bool,
    typer.Option("--resume", help="Go on from what an earlier start of this command saved: for batch systems."),
]
