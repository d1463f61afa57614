"""The browser that is installed, for playwright, which brings none here."""

import os
import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str | None:
    """Its path; None without any."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def arguments() -> list[str]:
    """How it is started: as root it refuses to run in its sandbox."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []
