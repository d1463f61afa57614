"""A real browser, and runs to show in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browsers import arguments, installed

PATIENCE = 240_000  # milliseconds that anything may take on a machine with other work
_ROWS = """async (rows) => {
    await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
    const told = ({ children }) => [children[1].textContent, children[2].textContent];
    return [...document.querySelectorAll(rows)].map(told);
}"""


@dataclass
class Shown:
    """A page in the browser, and what it said and asked for.

    Args:
        page: Playwright's page.
        errors: Console errors, uncaught exceptions and refusals of the content security policy.
        requests: Every URL that was asked for.
    """

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def hear(self, said: Any) -> None:
        if said.type in ("error", "warning"):
            self.errors.append(said.text)

    def box(self, chart: str) -> dict[str, float]:
        """Where a chart is on the screen, once it is."""
        canvas = self.page.locator(f"#chart-{chart} .chart")
        canvas.scroll_into_view_if_needed()
        canvas.locator("canvas").wait_for()
        box: dict[str, float] = canvas.bounding_box()
        return box

    def hover(self, chart: str, share: float = 0.5) -> list[tuple[str, float]]:
        """Name (with its place) and value of each line at a share of a chart's width."""
        box = self.box(chart)
        self.page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        rows = self.page.evaluate(_ROWS, f"#chart-{chart} .tip > div")
        return [(name, float(value)) for name, value in rows]


Show = Callable[..., Shown]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The Chromium that is installed; playwright brings none."""
    path = installed()
    if path is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments(), timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Any) -> Iterator[Show]:
    """`show(file)` opens a page; keywords go to the browser's context, such as `viewport` or `color_scheme`."""
    contexts = []

    def open_page(place: Path | str, **options: Any) -> Shown:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        shown = Shown(context.new_page())
        shown.page.on("console", shown.hear)
        shown.page.on("pageerror", lambda error: shown.errors.append(str(error)))
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.goto(place.as_uri() if isinstance(place, Path) else place)
        shown.page.wait_for_selector("html[data-drawn]", state="attached")
        return shown

    yield open_page
    for context in contexts:
        context.close()
