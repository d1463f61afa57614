"""The arguments of `gradwire resume`: the number behind --prove may be left out."""

import typer
from typer.core import TyperCommand

UPDATES = 20  # that --prove replays where it is not told; one of as many holds a digest


class ResumeCommand(TyperCommand):
    """Fills in the number behind --prove."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, _filled(args))


def _filled(args: list[str]) -> list[str]:
    found: list[str] = []
    for place, argument in enumerate(args):
        following = args[place + 1] if place + 1 < len(args) else ""
        found.append(f"--prove={UPDATES}" if argument == "--prove" and not following.isdigit() else argument)
    return found
