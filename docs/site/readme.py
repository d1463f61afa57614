"""The README as the site's first page, names of guides as links to them, and examples where a line names one."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_GUIDE = re.compile(r"(?<!\[)`docs/([\w/-]+\.md)`")
_LINK = re.compile(r"\]\(docs/")
_EXAMPLE = re.compile(r"^`(examples/\w+\.py)`:$", re.MULTILINE)
_README = re.compile(r"\]\(((?:\.\./)*)\.\./README\.md")  # README.md lies one folder above docs/


def on_files(files: Files, config: Any) -> Files:
    """README.md stands at the top of the repository, outside of docs/."""
    text = (Path(config.config_file_path).parent / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=_LINK.sub("](", text)))
    return files


def on_page_markdown(text: str, page: Any, config: Any, **_: Any) -> str:
    """After the name of an example alone on a line stands the example.

    `docs/sweeps.md`, as text outside of the site names it, becomes a link to that page; the README is index.md.
    """
    root = Path(config.config_file_path).parent
    text = _EXAMPLE.sub(lambda match: f"{match[0]}\n\n```python\n{(root / match[1]).read_text()}```", text)
    here = posixpath.dirname(page.file.src_uri)
    text = _README.sub(r"](\1index.md", text)
    return _GUIDE.sub(lambda match: f"[{match[0]}]({posixpath.relpath(match[1], here)})", text)
