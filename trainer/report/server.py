"""A report that follows its runs: a page on this machine alone, which asks for a newer document now and then."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from gradwire.trainer.report.document import Document, document_of
from gradwire.trainer.report.errors import ReportError
from gradwire.trainer.report.page import page, to_json
from gradwire.trainer.report.recorded import SOURCES, read_run

HOST = "127.0.0.1"


@dataclass
class Live:
    """The newest document on some runs; read again only when one of their files has changed.

    Args:
        folders: Of the runs.
    """

    folders: Sequence[Path]
    _seen: object = None
    _document: Document = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def document(self) -> Document:
        """What a report on the runs shows at this moment."""
        with self._lock:
            found = self._look()
            if found != self._seen:
                self._document, self._seen = document_of([read_run(folder) for folder in self.folders]), found
            return self._document

    def _look(self) -> object:
        files = [folder / name for folder in self.folders for name in SOURCES]
        stats = [file.stat() if file.exists() else None for file in files]
        return [stat and (stat.st_mtime_ns, stat.st_size) for stat in stats]


def serve(folders: Sequence[Path], port: int, ready: Callable[[str], None]) -> None:
    """Serve a live report until interrupted.

    Args:
        folders: Of the runs.
        port: 0 takes a free one.
        ready: Told the address.

    Raises:
        ReportError: the port cannot be had.
    """
    try:
        server = LiveServer(Live(folders), port)
    except OSError as error:
        raise ReportError(
            f"port {port} cannot be had ({error.strerror}): choose another --port, or 0 for any"
        ) from error
    ready(server.address)
    with server:
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return


class LiveServer(ThreadingHTTPServer):
    """Serves a page and its document to this machine.

    Args:
        live: What it shows.
        port: 0 takes a free one.

    Raises:
        OSError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, live: Live, port: int) -> None:
        super().__init__((HOST, port), _Handler)
        self.live = live

    @property
    def address(self) -> str:
        """Of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers `/` with the page, and `/data.json` with its document where that is newer than what the page has."""

    server: LiveServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._is_addressed():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to its own address alone\n")
        elif self.path == "/":
            text = page(self.server.live.document(), live=True)
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", text.encode("utf-8", errors="replace"))
        elif self.path == "/data.json":
            self._answer_data(to_json(self.server.live.document()).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is / and /data.json\n")

    def _is_addressed(self) -> bool:
        """Whether the request names this machine: another site's page cannot, whatever its name resolves to."""
        port = self.connection.getsockname()[1]
        return self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")

    def _answer_data(self, body: bytes) -> None:
        version = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == version:
            self._answer(HTTPStatus.NOT_MODIFIED, "application/json", b"", version)
        else:
            self._answer(HTTPStatus.OK, "application/json", body, version)

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, version: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        if version:
            self.send_header("ETag", version)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Nothing: the terminal shows the address."""
