"""The docs as a site: it builds without a warning, links and anchors included, and pages load nothing from elsewhere."""

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
