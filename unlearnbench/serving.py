"""One page, served on loopback: to this machine's browsers, and to no page of another site."""

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
class Served:
    """What is there to be had at one moment."""

    page: bytes
    version: str
    """Of the page; stands in the page, too."""
    line: str
    """How things are."""


@contextmanager
def serving(now: Callable[[], Served], port: int | None) -> Generator[str, None, None]:
    """Serve `/` (the page) and `/state` for the time of the `with`; yields the address.

    port  None: any that is free
    Raises: RecordError where the port cannot be had.
    """
    try:
        server = ThreadingHTTPServer((HOST, port or 0), _handler(now))
    except OSError as error:
        raise RecordError(
            f"port {port} of {HOST} cannot be had: {error.strerror or error}; choose another with "
            "--port, or leave it out for one that is free"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(now: Callable[[], Served]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """GET and HEAD of two addresses."""

        def do_GET(self) -> None:
            status, kind, body = self._answer()
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

        def _answer(self) -> tuple[int, str, bytes]:
            # A site whose name is made to point here still says its own name.
            port = self.connection.getsockname()[1]
            if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                return 403, "text/plain", b"for this machine only\n"
            served, path = now(), self.path.partition("?")[0]
            if path == "/":
                return 200, "text/html", served.page
            if path == "/state":
                state = {"version": served.version, "line": served.line}
                return 200, "application/json", json.dumps(state).encode()
            return 404, "text/plain", b"there is / and /state\n"

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the browser has left, as at each reload
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: requests are no news."""

    return Handler
