"""HTTP server of one page, for browsers on this machine and for no page of another site."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unlearnbench.errors import RecordError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServedPage:
    """The page at one moment."""

    page: bytes
    version: str
    """Also stands in the page, which reloads when `/state` has another."""
    line: str
    """Status line."""


@contextmanager
def serve_page(current: Callable[[], ServedPage], port: int | None) -> Generator[str, None, None]:
    """Serve `/` (the page) and `/state` for the time of a `with`, which yields the address.

    current  returns the page to serve now
    port     None: any free one

    Raises: RecordError if the port is not available.
    """
    handler = type("Handler", (_Handler,), {"current": staticmethod(current)})
    try:
        server = ThreadingHTTPServer((HOST, port or 0), handler)
    except OSError as error:
        raise RecordError(
            f"port {port} of {HOST} is not available: {error.strerror or error}; choose "
            "another with --port, or leave it out to get a free one"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    with server:
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of two addresses."""

    current: Callable[[], ServedPage]

    def do_GET(self) -> None:
        status, kind, body = self._response()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _response(self) -> tuple[int, str, bytes]:
        # DNS rebinding: a foreign site whose name resolves to this machine still sends its own
        # name as Host.
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return 403, "text/plain", b"only for browsers on this machine\n"
        now, path = self.current(), self.path.partition("?")[0]
        if path == "/":
            return 200, "text/html", now.page
        if path == "/state":
            state = {"version": now.version, "line": now.line}
            return 200, "application/json", json.dumps(state).encode()
        return 404, "text/plain", b"not found; there are / and /state\n"

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the browser closed the connection, as at each reload
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are not of interest."""
