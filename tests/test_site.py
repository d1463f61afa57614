"""The docs as a site: it builds without a warning, links and anchors included, and nothing is loaded from elsewhere."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOADS = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "form": "action"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(["make", "--silent", "build/typing"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class _Loads(HTMLParser):
    """The addresses that a page loads when it is opened, and whether it draws by a script that would be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "mermaid" in (given.get("class") or "").split():
            self.addresses.append("https://unpkg.com/mermaid")  # what the theme does with such a block
        if tag in LOADS and given.get(LOADS[tag]):
            self.addresses.append(str(given[LOADS[tag]]))


def pages(site: Path) -> Iterator[Path]:
    return site.rglob("*.html")


def test_every_guide_is_a_page(site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert sources | {Path("index.html")} <= {page.relative_to(site) for page in pages(site)}


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in pages(site):
        addresses = _Loads(page.read_text()).addresses
        assert len(addresses) > 2  # at least the theme's own styles and scripts
        assert [each for each in addresses if re.match(r"(https?:)?//", each)] == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()) == [], sheet


def test_the_readme_is_the_first_page_and_links_to_the_guides(site: Path) -> None:
    first = (site / "index.html").read_text()
    assert '<a href="elastic.html"><code>docs/elastic.md</code></a>' in first
    assert '<img alt="A report of a run' in first and 'src="images/report.png"' in first


@pytest.mark.parametrize("library", ["comm", "schedulers", "checkpoint", "inference", "trainer"])
def test_every_public_name_of_a_library_is_in_its_reference(site: Path, library: str) -> None:
    listed = re.search(r"^__all__ = (\[.*?\])$", (ROOT / library / "__init__.py").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    reference = (site / "reference" / f"{library}.html").read_text()
    shown = rf'id="gradwire(\.{library}\.(\w+\.)?|{library})%s"'  # of a name, and of a module that has a heading
    assert [name for name in ast.literal_eval(listed[1]) if not re.search(shown % name, reference)] == []


def test_every_key_and_every_option_is_in_the_reference(site: Path) -> None:
    reference = (site / "reference" / "configuration.html").read_text()
    for key in ("clip", "run.stop_at", "comm.segment_mb", "checkpoint.recover_within", "sweep.pruner", "model.init"):
        assert f"<code>{key}</code>" in reference
    options = [path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*/*.yaml")]
    for option in options:
        assert f"{option.stem}</code>" in reference, option


def test_the_tutorial_of_the_libraries_shows_the_examples(site: Path) -> None:
    tutorial = re.sub(r"<[^>]+>", "", (site / "tutorials" / "libraries.html").read_text())
    for line in (
        "scheduler = torch_scheduler(plan, optimizer)",
        "attach(model, AllReduce(), op=",
        "checkpointer.restore()",
    ):
        assert line in tutorial
