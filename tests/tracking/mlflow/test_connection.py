"""Unusable addresses of a store cost one line within seconds and never a run."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from unlearnbench.cli.main import main
from unlearnbench.tracking import SweepTracker
from unlearnbench.tracking.mlflow.connection import ENVIRONMENT

SECRET = "hunter2"


@contextmanager
def answering(code: int, **headers: str) -> Generator[str, None, None]:
    """A server with one response to all requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://u:{SECRET}@127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def garbage(folder: Path) -> Path:
    path = folder / "garbage.db"
    path.write_bytes(b"no database at all, of more than a hundred bytes " * 5)
    return path


ADDRESSES: dict[str, tuple[Callable[[Path], str], str]] = {
    "empty": (lambda _: "", "address is empty"),
    "blank": (lambda _: " ", "address is empty"),
    "bracket": (lambda _: "http://[::1", "not an address"),
    "port": (lambda _: "http://127.0.0.1:99999/", "not an address"),
    "no host": (lambda _: "http://", "not an address"),
    "closed": (lambda _: f"http://u:{SECRET}@127.0.0.1:{closed_port()}/", "connection refused"),
    "scheme": (lambda _: f"ftp://u:{SECRET}@127.0.0.1/x", "ftp://127.0.0.1/x"),
    "database": (lambda _: f"nosql://u:{SECRET}@127.0.0.1/x", "nosql://127.0.0.1/x"),
    "folder": (lambda folder: f"sqlite:///{folder}", "a folder, and SQLite needs a file"),
    "garbage": (lambda folder: f"sqlite:///{garbage(folder)}", "not a database"),
    "below a file": (lambda folder: f"sqlite:///{garbage(folder)}/x.db", "Not a directory|exists"),
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_an_unusable_address_costs_one_line_within_seconds(
    case: str, tmp_path: Path, kit: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """`track` ends with an error, a sweep goes on with a warning."""
    address, expected = ADDRESSES[case]
    uri = address(tmp_path)
    record, config = kit.record("aaaa"), kit.config(uri=uri)
    folder = kit.stored(tmp_path / "small", record, config=config)
    start = time.monotonic()
    assert main(["track", str(folder), "--uri", uri]) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1), err
    assert any(one in err for one in expected.split("|")), err
    assert not any(noise in err for noise in ("sqlalche.me", "urllib3", "Max retries", "(<"))

    warnings: list[str] = []
    with SweepTracker(config.tracking, folder, config, warn=warnings.append) as tracker:
        tracker.log(record)
    assert time.monotonic() - start < 20
    (warning,) = warnings
    assert f"no run is lost: records are complete, and `unlearnbench track {folder}`" in warning
    assert SECRET not in err + warning
    assert capfd.readouterr() == ("", "")


def test_a_missing_database_driver_is_named(
    tmp_path: Path, kit: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = next((d for d in ("psycopg2", "psycopg", "asyncpg") if not find_spec(d)), None)
    if driver is None:
        pytest.skip("every driver of PostgreSQL is installed")
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    uri = f"postgresql+{driver}://u:{SECRET}@127.0.0.1:9/db"
    assert main(["track", str(folder), "--uri", uri]) == 2
    err = capfd.readouterr().err
    assert f"its driver is not installed ({driver})" in err
    assert SECRET not in err


@pytest.mark.parametrize(
    ("code", "headers", "expected"),
    [
        (500, {}, "error (500)"),
        (503, {"Retry_After": "3600"}, "error (503)"),  # an hour is not waited for
        (401, {}, "access is refused (401)"),
        (403, {}, "access is refused (403)"),
        (404, {}, "no MLflow server answers there"),
    ],
)
def test_a_server_that_responds_with_errors(
    code: int,
    headers: dict[str, str],
    expected: str,
    tmp_path: Path,
    kit: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    begin = time.monotonic()
    with answering(code, **headers) as uri:
        assert main(["track", str(folder), "--uri", uri]) == 2
    assert time.monotonic() - begin < 20
    (line,) = capfd.readouterr().err.splitlines()
    assert expected in line
    assert SECRET not in line


def test_an_invalid_environment_variable_costs_no_run(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own value is not changed; MLflow's error is one line."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0.5")
    config = kit.config(uri=f"http://127.0.0.1:{closed_port()}")
    warnings: list[str] = []
    with SweepTracker(config.tracking, tmp_path, config, warn=warnings.append) as tracker:
        tracker.log(kit.record("aaaa"))
    (warning,) = warnings
    assert "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR" in warning


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_mlflow_accepts_each_environment_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each variable exists in the installed MLflow, which can parse its value."""
    from mlflow import environment_variables

    monkeypatch.setenv(name, ENVIRONMENT[name])
    assert getattr(environment_variables, name).get() is not None


def test_mlflow_does_not_log_its_retries() -> None:
    from unlearnbench.tracking.mlflow.connection import import_mlflow

    import_mlflow()
    for name in ("mlflow.store.db.utils", "urllib3.connectionpool", "mlflow.system_metrics"):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)
    assert not logging.getLogger("alembic").isEnabledFor(logging.INFO)


def test_secrets_stored_by_an_earlier_version_are_not_logged(
    tmp_path: Path, kit: Any, seen: Any
) -> None:
    config = kit.config(uri=f"http://u:{SECRET}@127.0.0.1:9", experiment="secrets")
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"), config=config)
    (folder / "sweep.log").write_text(f"MLflow at http://u:{SECRET}@127.0.0.1:9\n")
    uri = f"sqlite:///{tmp_path}/later.db"
    assert main(["track", str(folder), "--uri", uri]) == 0
    store = seen(uri)
    (parent,) = store.parents
    for name in ("plan.json", "sweep.log"):
        path = store.client.download_artifacts(parent.info.run_id, name, str(tmp_path))
        assert SECRET not in Path(path).read_text()
        assert "http://127.0.0.1:9" in Path(path).read_text()
