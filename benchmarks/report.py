"""The report of a long run in a real browser: its size, how long it takes to write and to open, how fast it answers.

    python benchmarks/report.py [--updates N] [--runs N] [--json FILE]
    python benchmarks/report.py --picture FILE RUN…

Opening is from the request to the last chart drawn, the median of several. Moving is from a movement of the pointer to
the next frame, which shows the values there. With --picture a report on runs that exist becomes a picture instead.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from benchmarks.browsers import arguments, installed
from benchmarks.report_runs import records, write_run
from gradwire.trainer.report import report_on, write

ROUNDS = 5
_FRAME = "new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown)))"


def opened(browser: Any, file: Path, height: int = 900) -> tuple[Any, float]:
    """The page, and the seconds until it was drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": height})
    began = time.perf_counter()
    page.goto(file.as_uri(), wait_until="commit")
    page.wait_for_selector("html[data-drawn]", state="attached")
    return page, time.perf_counter() - began


def moved(page: Any) -> float:
    """Seconds from a movement of the pointer over a chart to the frame that shows it."""
    box = page.locator("#chart-loss .chart").bounding_box()
    times = []
    for step in range(20):
        began = time.perf_counter()
        page.mouse.move(box["x"] + box["width"] * (0.2 + 0.03 * step), box["y"] + box["height"] / 2)
        page.evaluate(_FRAME)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(updates: int, runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folders = [write_run(Path(name) / f"run-{n}", list(records(updates, n)), f"run {n}") for n in range(runs)]
        file = Path(name) / "report.html"
        began = time.perf_counter()
        write(report_on(folders), file)
        written = time.perf_counter() - began
        browser = playwright.chromium.launch(executable_path=installed(), args=arguments())
        opened(browser, file)  # the first page of a browser starts its processes
        pages = [opened(browser, file) for _ in range(ROUNDS)]
        found = {
            "runs": runs,
            "updates": updates,
            "megabytes": file.stat().st_size / 1e6,
            "seconds to write": written,
            "seconds to open": statistics.median(seconds for _, seconds in pages),
            "milliseconds to move": 1000 * moved(pages[-1][0]),
        }
        browser.close()
    return found


def picture(file: Path, runs: list[str]) -> None:
    """What the README shows: the first charts of a report on these runs, and what happened to them."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page_file = Path(name) / "report.html"
        write(report_on([Path(run) for run in runs]), page_file)
        browser = playwright.chromium.launch(executable_path=installed(), args=arguments())
        page, _ = opened(browser, page_file, 1500)
        page.evaluate(_FRAME)
        page.screenshot(path=file, clip={"x": 0, "y": 0, "width": 1280, "height": 1500}, full_page=True)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("shown", nargs="*", metavar="RUN")
    given = parser.parse_args()
    if given.picture:
        picture(given.picture, given.shown)
        return
    found = measure(given.updates, given.runs)
    print("\n".join(f"{name:22} {value:,.2f}" for name, value in found.items()))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
