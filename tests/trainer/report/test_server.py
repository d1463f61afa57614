"""The live report: on this machine alone, and newer when its runs are."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.report_runs import records, write_run
from gradwire.trainer.report.errors import ReportError
from gradwire.trainer.report.server import HOST, Live, LiveServer, serve
from tests.trainer.report.conftest import Show


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", list(records(10)))


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    server = LiveServer(Live([run]), 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.address
    server.shutdown()
    thread.join()
    server.server_close()


def ask(url: str, **headers: str) -> tuple[int, bytes, str]:
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.status, answer.read(), answer.headers.get("ETag", "")
    except urllib.error.HTTPError as error:
        return error.code, error.read(), ""


def more(run: Path, count: int) -> None:
    """The run goes on to `count` lines."""
    longer = run / "longer.jsonl"
    longer.write_text("".join(json.dumps(record) + "\n" for record in records(count)))
    longer.replace(run / "metrics.jsonl")  # at once: the server may look at any moment


def test_the_document_is_newer_when_the_run_is(address: str, run: Path) -> None:
    status, body, version = ask(f"{address}data.json")
    assert status == 200 and len(json.loads(body)["runs"][0]["positions"]["update"]) == 10
    assert ask(f"{address}data.json", If_None_Match=version)[0] == 304
    more(run, 20)
    status, body, _ = ask(f"{address}data.json", If_None_Match=version)
    assert status == 200 and len(json.loads(body)["runs"][0]["positions"]["update"]) == 20


def test_nothing_else_is_served(address: str) -> None:
    assert [ask(address + path)[0] for path in ("config.yaml", "../config.yaml", "//etc/passwd")] == [404, 404, 404]


def test_a_name_that_another_site_has_pointed_here_is_refused(address: str) -> None:
    assert ask(address, Host="example.org")[0] == 403
    assert ask(address, Host=address.split("/")[2].replace(HOST, "localhost"))[0] == 200


def test_a_port_that_is_taken_is_an_error(address: str, run: Path) -> None:
    port = int(address.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(ReportError, match=f"port {port} cannot be had"):
        serve([run], port, lambda _: None)


def test_the_command_serves_until_it_is_interrupted(run: Path) -> None:
    code = "from gradwire.trainer.cli import main; main()"
    command = [sys.executable, "-c", code, "report", str(run), "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"report    (http://127\.0\.0\.1:\d+/) \(until Ctrl-C\)\n", process.stdout.readline())
        assert found is not None
        status, body, _ = ask(found[1])
        assert status == 200 and b"Training report: a run" in body
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 0
    assert not (run / "report.html").exists()


def test_the_page_follows_and_keeps_what_was_chosen(show: Show, address: str, run: Path) -> None:
    shown = show(address)
    shown.page.check("input[value=update]")
    shown.page.locator("#chart-loss button", has_text="eval/loss").click()
    more(run, 30)
    while shown.page.evaluate("report.runs[0].positions.update.length") < 30:
        shown.page.wait_for_timeout(100)
    assert shown.page.is_checked("input[value=update]")
    assert shown.page.locator("#chart-loss button", has_text="eval/loss").get_attribute("aria-pressed") == "false"
    assert shown.errors == []
    assert {url.removeprefix(address) for url in shown.requests} == {"", "data.json"}
