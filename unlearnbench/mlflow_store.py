"""Where MLflow keeps what is logged, and MLflow itself, quiet and quick to give up."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from unlearnbench.execution import TrackingSettings

STORE = "mlflow.db"
ENVIRONMENT = {
    # MLflow's defaults wait two minutes seven times over.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0.5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Standard output is for results: two lines about each run would stand among them.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def store_uri(settings: TrackingSettings, folder: Path) -> str:
    """Where runs go: the setting, else MLFLOW_TRACKING_URI, else SQLite in the sweep's folder."""
    default = f"sqlite:///{(folder / STORE).resolve()}"
    return settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or default


def import_mlflow() -> tuple[type[Exception], ...]:
    """Import mlflow quietly; returns the exceptions that a store or a server can raise."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # These report at INFO each table that they create.
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.tracking", "mlflow.system_metrics"):
        logging.getLogger(name).setLevel(logging.WARNING)
    from mlflow.exceptions import MlflowException
    from sqlalchemy import event
    from sqlalchemy.engine import Engine
    from sqlalchemy.exc import SQLAlchemyError

    if not event.contains(Engine, "connect", _without_waiting):
        event.listen(Engine, "connect", _without_waiting)
    return MlflowException, SQLAlchemyError, OSError


def _without_waiting(connection: Any, _: Any) -> None:
    """Let SQLite not wait for the disk at each of the eight commits of a record.

    What a power cut could take is in the records, and logged again from there.
    """
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA synchronous = OFF")
