"""MLflow's pages of a sweep, opened on its tracking server or served here.

The server is `mlflow server`; this finds the sweep in the store, a free port and a browser, waits
until the server answers, and ends all its processes.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.reporting.tracker_links import Links, server_of
from unlearnbench.runtime.redaction import redact
from unlearnbench.tracking.mlflow.connection import (
    ENVIRONMENT,
    STORE,
    check_store,
    import_mlflow,
    store_error,
    store_uri,
)
from unlearnbench.tracking.mlflow.runs_view import share_view
from unlearnbench.tracking.mlflow.store import ARTIFACTS, experiment_name, sweep_id
from unlearnbench.tracking.replay import sweep_config

HOST = "127.0.0.1"
PORTS = range(5000, 5020)
"""Tried in this order if no port is given."""
START_SECONDS = 120.0
STOP_SECONDS = 10.0
SERVER = (sys.executable, "-m", "mlflow", "server")
_QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Do not start ten worker processes for jobs that never come."""


def ui_command(folder: Path, *, tracked: bool = True) -> str:
    """Command that shows a sweep in MLflow, where one that was not tracked is logged first."""
    place, here = folder.resolve(), Path.cwd()
    short = shlex.quote(str(place.relative_to(here) if place.is_relative_to(here) else place))
    show = f"unlearnbench ui {short}"
    return show if tracked else f"unlearnbench track {short} && {show}"


def open_ui(
    folder: Path,
    *,
    port: int | None = None,
    browser: bool = True,
    show: Callable[[str], None] = print,
) -> None:
    """Show a sweep in MLflow, with its experiment selected; `show` prints the addresses.

    A sweep on a tracking server is shown there. Any other store is served on loopback until
    Ctrl-C.

    port      default: the first free one from 5000
    browser   True opens one, if there is one
    Raises: RecordError if the sweep is not logged; UnlearnbenchError for a port in use, a store
    that cannot be served, and a server that does not start or answer.
    """
    config = sweep_config(folder)
    uri = store_uri(config.tracking, folder)
    if uri.startswith("databricks"):
        raise UnlearnbenchError(f"{folder} is tracked by {uri}: open that in a browser")
    if uri.startswith("sqlite:") and STORE in uri and not (folder / STORE).is_file():
        raise _unlogged(folder, f"{folder / STORE} does not exist")
    place, artifacts = _find(folder, config, uri)
    if server := server_of(uri):
        show_links(replace(place, server=server), browser, show)
        return
    if artifacts and not Path(artifacts).is_dir():
        show(
            f"note: pages and answers were logged to {artifacts}, which does not exist any more; "
            f"remove {STORE} and {ARTIFACTS}, and `unlearnbench track {shlex.quote(str(folder))}` "
            "logs them again"
        )
    with _serving(uri, free_port(port)) as (server, process):
        show_links(replace(place, server=server), browser, show)
        show("Ctrl-C ends it")
        try:
            process.wait()
        except KeyboardInterrupt:
            return
        raise UnlearnbenchError(f"MLflow's server ended with code {process.returncode}")


def _find(folder: Path, config: SweepConfig, uri: str) -> tuple[Links, str]:
    """MLflow's ids of the sweep, and the folder of its artifacts if they are local files."""
    expected: tuple[type[Exception], ...] = (*import_mlflow(), ValueError, ImportError)
    check_store(uri)
    from mlflow import MlflowClient

    try:
        client: Any = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment_name(config.tracking, config))
        condition = f"tags.`unlearnbench.sweep_id` = '{sweep_id(config)}'"
        runs = client.search_runs([found.experiment_id], condition) if found else []
        if not runs:
            raise _unlogged(folder, f"{folder} is not logged at {redact(uri)}")
        info = runs[0].info
        view = _view(client, str(found.experiment_id), str(info.run_id), config)
    except expected as error:
        raise store_error(error, uri) from None
    artifacts = str(info.artifact_uri)
    folder_of = artifacts.removeprefix("file://") if artifacts.startswith("file://") else ""
    return Links("", str(found.experiment_id), str(info.run_id), view=view), folder_of


def _view(client: Any, experiment: str, sweep: str, config: SweepConfig) -> str | None:
    """Name of the view of the sweep's runs; None where it cannot be stored."""
    from mlflow.exceptions import MlflowException

    try:
        return share_view(client, experiment, sweep, config.data.headline)
    except MlflowException:  # a server that its user may only read
        return None


def _unlogged(folder: Path, problem: str) -> RecordError:
    return RecordError(
        f"{problem}; `unlearnbench track {shlex.quote(str(folder))}` logs it from the records"
    )


def show_links(place: Links, browser: bool, show: Callable[[str], None]) -> None:
    """Show the addresses, and open the experiment in a browser, if there is one."""
    show(f"experiment  {place.of_experiment}")
    show(f"this sweep  {place.of_sweep}")
    if browser and _has_browser():
        webbrowser.open(place.of_experiment)


def _has_browser() -> bool:
    """True if there is a browser with a window; a text browser would take over the terminal."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def free_port(port: int | None) -> int:
    """Return `port`, or by default the first free one. Raises: UnlearnbenchError if in use."""
    for one in PORTS if port is None else (port,):
        with socket.socket() as probe:
            # As the server does: connections that a previous server left do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, one))
            except OSError:
                continue
            return one
    which = f"port {port}" if port else f"every port from {PORTS[0]} to {PORTS[-1]}"
    raise UnlearnbenchError(f"{which} of {HOST} is in use; choose another with --port")


@contextmanager
def _serving(uri: str, port: int) -> Generator[tuple[str, subprocess.Popen[bytes]], None, None]:
    """Run MLflow's server for the time of the `with`; yields its address once it answers."""
    command = [*SERVER, "--backend-store-uri", uri]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    with TemporaryFile() as output:
        # In a session of its own: Ctrl-C reaches this process, which ends all of the server's.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_QUIET | ENVIRONMENT | os.environ,
            start_new_session=True,
        )
        try:
            address = f"http://{HOST}:{port}"
            _wait_until_ready(address, process, output)
            yield address, process
        finally:
            _end(process)


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    # Without a proxy, because the address is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with opener.open(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    reason = " / ".join(line.strip() for line in lines[-3:]) or "without output"
    raise UnlearnbenchError(f"MLflow's server at {address} did not start: {reason}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
