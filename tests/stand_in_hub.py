"""A hub of models over HTTP on this machine, for tests whose processes read it as the real one."""

from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from .conftest import FakeHub


@contextmanager
def served(hub: FakeHub) -> Generator[str, None, None]:
    """Serve a hub meanwhile; yields its address, which is a value for `HF_ENDPOINT`."""

    class Handler(BaseHTTPRequestHandler):
        """Passes requests on to the hub."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = SimpleNamespace(url=SimpleNamespace(path=path), headers=headers)
            answer = hub.answer(request)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
