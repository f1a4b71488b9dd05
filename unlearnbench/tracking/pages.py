"""MLflow's own pages of a sweep, opened where the sweep is: served here, or by its own server."""

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

from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.links import Links, server_of
from unlearnbench.mlflow_store import (
    ENVIRONMENT,
    STORE,
    check_store,
    explained,
    import_mlflow,
    store_uri,
)
from unlearnbench.redaction import redact
from unlearnbench.settings import SweepConfig
from unlearnbench.tracking.replaying import sweep_config
from unlearnbench.tracking.store import ARTIFACTS, experiment_name, sweep_id

HOST = "127.0.0.1"
PORTS = range(5000, 5020)
"""The first free one of these is taken where none is asked for."""
START_SECONDS = 120.0
STOP_SECONDS = 10.0
_QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""Ten processes that wait for work that is never asked of them."""


def ui_command(folder: Path) -> str:
    """What to type to see a sweep in MLflow."""
    place, here = folder.resolve(), Path.cwd()
    told = place.relative_to(here) if place.is_relative_to(here) else place
    return f"unlearnbench ui {shlex.quote(str(told))}"


def open_ui(
    folder: Path,
    *,
    port: int | None = None,
    browser: bool = True,
    tell: Callable[[str], None] = print,
) -> None:
    """Show a sweep in MLflow, with its experiment selected; `tell` gets the addresses.

    A sweep that is tracked by a server is shown there. Of any other the store is served on
    loopback, until Ctrl-C.

    port      default: the first free one from 5000
    browser   whether one is opened, if there is one
    Raises: RecordError where the sweep is not logged; UnlearnbenchError for a port that is taken,
    a store that is no server's but cannot be served, and a server that does not start or answer.
    """
    config = sweep_config(folder)
    uri = store_uri(config.tracking, folder)
    if uri.startswith("databricks"):
        raise UnlearnbenchError(f"{folder} is tracked by {uri}: open that in a browser")
    if uri.startswith("sqlite:") and STORE in uri and not (folder / STORE).is_file():
        raise _unlogged(folder, f"{folder / STORE} does not exist")
    place, artifacts = _find(folder, config, uri)
    if server := server_of(uri):
        show(replace(place, server=server), browser, tell)
        return
    if artifacts and not Path(artifacts).is_dir():
        tell(
            f"note: pages and answers were logged to {artifacts}, which is not there any more; "
            f"without {STORE} and {ARTIFACTS}, `unlearnbench track {shlex.quote(str(folder))}` "
            "logs them anew"
        )
    with _serving(uri, free(port)) as (server, process):
        show(replace(place, server=server), browser, tell)
        tell("Ctrl-C ends it")
        try:
            process.wait()
        except KeyboardInterrupt:
            return
        raise UnlearnbenchError(f"MLflow's server has ended with code {process.returncode}")


def _find(folder: Path, config: SweepConfig, uri: str) -> tuple[Links, str]:
    """Where the sweep is, by MLflow's ids, and the folder of its artifacts if they are files."""
    expected: tuple[type[Exception], ...] = (*import_mlflow(), ValueError, ImportError)
    check_store(uri)
    from mlflow import MlflowClient

    try:
        client: Any = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment_name(config.tracking, config))
        condition = f"tags.`unlearnbench.sweep_id` = '{sweep_id(config)}'"
        runs = client.search_runs([found.experiment_id], condition) if found else []
    except expected as error:
        raise UnlearnbenchError(f"MLflow at {redact(uri)}: {explained(error, uri)}") from None
    if not runs:
        raise _unlogged(folder, f"{folder} is not logged at {redact(uri)}")
    info = runs[0].info
    artifacts = str(info.artifact_uri)
    folder_of = artifacts.removeprefix("file://") if artifacts.startswith("file://") else ""
    return Links("", str(found.experiment_id), str(info.run_id)), folder_of


def _unlogged(folder: Path, what: str) -> RecordError:
    return RecordError(
        f"{what}; `unlearnbench track {shlex.quote(str(folder))}` logs it from the records"
    )


def show(place: Links, browser: bool, tell: Callable[[str], None]) -> None:
    """Tell where it is, and open it in a browser if that is wished and there is one."""
    tell(f"experiment  {place.of_experiment}")
    tell(f"this sweep  {place.of_sweep}")
    if browser and _has_browser():
        webbrowser.open(place.of_experiment)


def _has_browser() -> bool:
    """Whether there is a browser with a window: one for text would take the terminal over."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def free(port: int | None) -> int:
    """The port asked for, or one that is free. Raises: UnlearnbenchError."""
    asked = PORTS if port is None else (port,)
    for one in asked:
        with socket.socket() as probe:
            # As the server will: what a server before it has left is no reason to wait.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, one))
            except OSError:
                continue
            return one
    which = f"port {port}" if port else f"every port from {PORTS[0]} to {PORTS[-1]}"
    raise UnlearnbenchError(f"{which} of {HOST} is taken; choose another with --port")


@contextmanager
def _serving(uri: str, port: int) -> Generator[tuple[str, subprocess.Popen[bytes]], None, None]:
    """MLflow's server, until the end of the `with`; yields its address once it answers."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    with TemporaryFile() as said:
        # In a session of its own: Ctrl-C is for us, who end it with all its processes.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=_QUIET | ENVIRONMENT | os.environ,
            start_new_session=True,
        )
        try:
            address = f"http://{HOST}:{port}"
            _await(address, process, said)
            yield address, process
        finally:
            _end(process)


def _await(address: str, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    # Not through a proxy: the address is this machine's.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            with opener.open(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    told = " / ".join(line.strip() for line in lines[-3:]) or "it said nothing"
    raise UnlearnbenchError(f"MLflow's server at {address} did not start: {told}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the workers that it has started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(STOP_SECONDS)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
