"""The page of real runs in a real browser: what it draws, what it says, and what it never does."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.report_runs import records, write_run
from benchmarks.runs import environment, held, lines
from gradwire.trainer.report import report_on, save_pictures, write
from tests.trainer.commands import gradwire
from tests.trainer.report.conftest import Show, Shown

HOSTILE = "<script>document.title=1</script>"
SMALL = [
    "model=decoder_1m",
    "model.width=32",
    "model.layers=1",
    "model.heads=2",
    "data.context=32",
    "batch.size=8",
    "batch.micro=4",
    "run.log_every=2",
    "evaluation.limit=16",
    "evaluation.sample_length=8",
    "checkpoint.every=30 updates",
    "logger=none",
    "launch.device=cpu",
]
GRADWIRE = [sys.executable, "-c", "from gradwire.trainer.cli import main; main()"]


def launch(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*GRADWIRE, *arguments],
        env=environ or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Two ranks with a codec and a journal, killed and resumed; and one process, with a name that is a script."""
    folder = tmp_path_factory.mktemp("runs")
    coded, single = folder / "coded", folder / "single"
    apart = ["comm=ring", "comm/codec@comm.codecs.ring=int8", "checkpoint=journal", "launch.processes=2"]
    interrupted = ["evaluation.every=10 updates", "run.length=40 updates", "noise_scale.every=4 updates"]
    first = launch("train", f"run.dir={coded}", "run.name=coded", *SMALL, *apart, *interrupted, environ=held(14))
    alone = launch(
        "train",
        f"run.dir={single}",
        f'run.name="{HOSTILE}"',
        "strategy=single",
        "launch.processes=1",
        *SMALL,
        "run.length=20 updates",
    )
    while not any(line["update"] >= 14 for line in lines(coded)):
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)  # its ranks die with it
    first.communicate()
    for process in (alone, launch("resume", str(coded))):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
    yield [coded, single]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> Path:
    """The report on both, as the command writes it."""
    with (runs[1] / "metrics.jsonl").open("a") as file:
        file.write('{"update": 99, "train/lo')
    done = gradwire("report", *map(str, runs), "-o", "both.html", cwd=runs[0].parent)
    assert done.returncode == 0 and "both.html" in done.stdout, done.stderr
    return runs[0].parent / "both.html"


@pytest.fixture
def shown(show: Show, page: Path) -> Iterator[Shown]:
    """The page; afterwards it has complained of nothing, and has asked for nothing but itself."""
    shown = show(page)
    yield shown
    assert shown.errors == []
    assert shown.requests == [page.as_uri()]


def ink(shown: Shown, chart: str) -> int:
    """How many pixels of a chart are not transparent."""
    shown.box(chart.removeprefix("chart-"))
    count: int = shown.page.evaluate(
        """async (id) => { const canvas = document.querySelector(`#${id} canvas`);
        await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        let count = 0; for (let i = 3; i < data.length; i += 4) count += data[i] > 0; return count; }""",
        chart,
    )
    return count


def test_every_chart_is_drawn(shown: Shown) -> None:
    figures = [figure.get_attribute("id") for figure in shown.page.locator("figure").all()]
    expected = ["loss", "lr", "batch-size", "noise-scale", "grad-norm", "throughput", "time", "time-mean", "bytes"]
    assert {f"chart-{name}" for name in [*expected, "error", "timeline"]} <= set(figures)
    assert all(ink(shown, figure) > 500 for figure in figures)


def test_values_under_the_pointer_are_those_of_the_metrics(shown: Shown, runs: list[Path]) -> None:
    values = {line["update"]: line for line in lines(runs[0])}
    for share in (0.3, 0.6):
        rows = [(name, value) for name, value in shown.hover("loss", share) if name.startswith("coded: train/loss")]
        assert rows
        for name, value in rows:
            update = int(name.split("update ")[1].split(",")[0])
            assert value == values[update]["train/loss"]


def test_lines_can_be_laid_over_time_and_tokens_and_switched_off(shown: Shown, runs: list[Path]) -> None:
    for axis in ("tokens", "time", "update"):
        shown.page.check(f"input[value={axis}]")
        assert len(shown.hover("loss")) >= 2
    shown.page.locator("#chart-loss button", has_text="train/loss").click()
    assert all("train/loss" not in name for name, _ in shown.hover("loss", 0.52))
    shown.page.locator("#chart-loss button", has_text="train/loss").click()
    shown.page.locator("nav .run input").first.uncheck()
    assert all(not name.startswith("coded") for name, _ in shown.hover("loss", 0.2))


def test_a_range_can_be_dragged_and_typed(shown: Shown) -> None:
    shown.page.check("input[value=update]")
    box = shown.box("loss")
    shown.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    shown.page.mouse.down()
    shown.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 90, steps=4)
    shown.page.mouse.up()
    while not shown.page.input_value("#to"):
        shown.page.wait_for_timeout(20)
    begin, end = (float(shown.page.input_value(f"#{side}")) for side in ("from", "to"))
    assert 15 < begin < 25 and 25 < end < 35
    shown.page.click("#reset")
    assert shown.page.input_value("#from") == ""
    shown.page.fill("#from", "30")
    shown.page.press("#from", "Enter")
    assert all(int(name.split("update ")[1].split(",")[0]) >= 30 for name, _ in shown.hover("lr", 0.1))


def test_names_and_texts_of_runs_are_only_shown(shown: Shown) -> None:
    assert shown.page.title().startswith("Training report: coded")
    assert HOSTILE in shown.page.locator("h1").inner_text()
    assert HOSTILE in shown.page.locator("#glance table").inner_text()


def test_what_happened_is_told(shown: Shown) -> None:
    told = shown.page.locator("#history").inner_text()
    assert "start 1 (2 ranks) started anew" in told and "no end recorded: killed" in told
    assert "start 2 (2 ranks) went on from" in told and "replayed from the journal" in told
    assert "are in the journal" in told and "snapshot of update" in told
    assert "1 line could not be read and is left out" in shown.page.locator("#glance").inner_text()


def test_the_configurations_are_compared(shown: Shown) -> None:
    rows = shown.page.locator("#configuration [aria-label='Where the runs differ'] tbody th").all_inner_texts()
    assert "run.name" in rows and "checkpoint.journal" in rows and "optimizer.lr" not in rows
    assert "sampled" not in rows


def test_samples_are_shown_by_update(shown: Shown, runs: list[Path]) -> None:
    sampled = [line for line in lines(runs[0]) if "eval/sample" in line]
    shown.page.locator("#texts select").first.select_option(f"update {sampled[0]['update']}")
    assert shown.page.locator("#texts pre").first.text_content() == sampled[0]["eval/sample"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(show: Show, page: Path, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = show(page, color_scheme=scheme)
    found = Axe().run(shown.page)
    assert found.violations_count == 0, found.generate_report()
    paper = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")


def test_a_phone_shows_it_without_scrolling_sideways(show: Show, page: Path) -> None:
    shown = show(page, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert shown.page.evaluate("document.documentElement.scrollWidth") == 390
    assert all(box["width"] <= 390 for box in (figure.bounding_box() for figure in shown.page.locator("figure").all()))
    assert ink(shown, "chart-loss") > 500


def test_injected_scripts_and_requests_are_refused(show: Show, page: Path) -> None:
    shown = show(page)
    refused = shown.page.evaluate(
        """async () => { const script = document.createElement("script"); script.textContent = "window.taken = 1";
        document.body.append(script);
        const fetched = await fetch("https://example.org/").then(() => true, () => false);
        return [window.taken, fetched]; }"""
    )
    assert refused == [None, False]
    while len(shown.errors) < 2:
        shown.page.wait_for_timeout(20)  # they are told apart from the answer
    assert all("Content Security Policy" in error or "fetch" in error for error in shown.errors)


def test_a_run_of_a_hundred_thousand_updates_fits_and_opens(show: Show, tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", list(records(100_000)))
    file = tmp_path / "long.html"
    write(report_on([run]), file)
    assert file.stat().st_size < 5_000_000
    shown = show(file)
    assert "1,198 of 100,000 points" in shown.page.locator("#chart-lr .note").inner_text()
    assert shown.errors == []


def test_each_chart_is_a_picture_too(runs: list[Path], tmp_path: Path) -> None:
    files = save_pictures(report_on(runs), tmp_path / "pictures")
    assert {"loss.png", "lr.png", "bytes.png", "time-mean.png", "timeline.png"} <= {file.name for file in files}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_the_browser_saves_a_picture(shown: Shown, tmp_path: Path) -> None:
    with shown.page.expect_download() as download:
        shown.page.locator("#chart-loss figcaption button").click()
    assert download.value.suggested_filename == "loss.png"
    download.value.save_as(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    shown.requests[:] = [url for url in shown.requests if not url.startswith("data:")]  # the picture itself
