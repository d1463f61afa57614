"""The README as the site's first page, and names of guides as links to them."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_GUIDE = re.compile(r"(?<!\[)`docs/([\w/-]+\.md)`")
_LINK = re.compile(r"\]\(docs/")


def on_files(files: Files, config: Any) -> Files:
    """README.md stands at the top of the repository, outside of docs/."""
    text = (Path(config.config_file_path).parent / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=_LINK.sub("](", text)))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """`docs/sweeps.md`, as text outside of the site names it, becomes a link to that page."""
    here = posixpath.dirname(page.file.src_uri)
    return _GUIDE.sub(lambda match: f"[{match[0]}]({posixpath.relpath(match[1], here)})", text)
