"""The page: one HTML file that holds its data, its scripts and its styles, and asks the network for nothing."""

import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_ASSETS = files("gradwire.trainer.report") / "assets"
_LIBRARY = "echarts/echarts.min.js"
_DRAWING = ("colors.js", "hover.js", "lines.js", "shapes.js", "timeline.js")
_SCRIPTS = (*_DRAWING, "tables.js", "controls.js", "live.js", "page.js")


def page(document: Mapping[str, Any], *, live: bool = False) -> str:
    """A report as HTML.

    Names and texts of runs stand in a block of JSON that no browser runs, and reach the page as text. The policy allows
    the scripts and styles in the file alone, each by its digest, and no request; a live page may ask its own server.

    Args:
        document: What to show.
        live: Whether a server gives the page, and newer documents when asked for.
    """
    scripts = [_asset(_LIBRARY), "\n".join(_asset(name) for name in _SCRIPTS)]
    style = _asset("page.css")
    policy = "; ".join(
        [
            "default-src 'none'",
            "script-src " + " ".join(map(_digest, scripts)),
            f"style-src {_digest(style)}",
            "img-src data:",
            "connect-src 'self'" if live else "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(str(document["title"])),
        "STYLE": style,
        "LIVE": "live" if live else "still",
        "DATA": to_json(document),
        "LIBRARY": scripts[0],
        "SCRIPT": scripts[1],
    }
    text, *pieces = _asset("page.html").split("{{")
    for piece in pieces:  # not one replacement after another: what was put in may hold the name of another part
        name, rest = piece.split("}}", 1)
        text += parts[name] + rest
    return text


def to_json(document: Mapping[str, Any]) -> str:
    """Strict JSON that can stand in an HTML file: no text in it can end the element that holds it."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a content security policy names a script or style that stands in the page."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
