"""Addresses of a sweep's runs in its tracker, and MLflow's pages of them: `unlearnbench ui`.

Addresses of a local store begin with the store, or with # for the one in the sweep's folder.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from unlearnbench.analysis.results import LINKS_FILE, stored_links
from unlearnbench.base.atomic import write_text
from unlearnbench.base.errors import RecordError

HOST = "127.0.0.1"
STORE = "mlflow.db"
"""MLflow's store in a sweep's folder, where no other is configured."""


def write_links(folder: Path, sweep: str, runs: Mapping[str, str | None]) -> None:
    """Store the addresses of the sweep and of each run by record id."""
    text = json.dumps({"sweep": sweep, "runs": dict(runs)}, indent=1)
    write_text(folder / LINKS_FILE, text + "\n")


def ui_command(folder: Path, *, tracked: bool = True) -> str:
    """Command that shows a sweep in MLflow, where one that was not tracked is logged first."""
    path, current = folder.resolve(), Path.cwd()
    short = shlex.quote(str(path.relative_to(current) if path.is_relative_to(current) else path))
    show = f"unlearnbench ui {short}"
    return show if tracked else f"unlearnbench track {short} && {show}"


def show_in_mlflow(folder: Path, port: int, show: Callable[[str], None]) -> None:
    """Show the address of a sweep's runs; serve a local store on loopback, until Ctrl-C.

    Raises: RecordError if the sweep is not logged.
    """
    link = stored_links(folder).get("sweep")
    store, _, view = (link or "").partition("#")
    local = not store and not (folder / STORE).is_file()
    if link is None or local:
        problem = (
            f"{folder / STORE} does not exist" if local and link else f"{folder} is not logged"
        )
        raise RecordError(
            f"{problem}; `unlearnbench track {shlex.quote(str(folder))}` logs it from the records"
        )
    if store.startswith("http"):
        show(link)
        return
    show(f"http://{HOST}:{port}/#{view}  (Ctrl-C ends it)")
    _serve(store or f"sqlite:///{(folder / STORE).resolve()}", port)


def _serve(uri: str, port: int) -> NoReturn:
    """Become MLflow's own server."""
    # Without ten worker processes for jobs that never come.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level critical"]
    os.execve(sys.executable, command, environment)
