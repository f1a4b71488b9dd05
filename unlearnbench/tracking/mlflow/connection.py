"""Connection to an MLflow store: address, checks, short timeouts and readable errors.

MLflow retries a database that does not answer ten times, for minutes, and passes on the errors of
its libraries. So an address is checked before MLflow uses it, and errors are explained here.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unlearnbench.config.resources import TrackingSettings
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.runtime.redaction import redact

STORE = "mlflow.db"
ENVIRONMENT = {
    # MLflow's defaults wait seven times two minutes, or as long as the server demands.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",  # must be an integer
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Standard output is for results; MLflow would print two lines for each run.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


DATABASE_SECONDS = 5
"""Longest wait for a database to accept a connection."""
_DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?:")
_EXPLANATIONS = (
    (r"Connection refused", "connection refused: nothing listens there; is it running?"),
    (r"NameResolution|Name or service|nodename nor|No address associated", "unknown host"),
    (r"[Tt]imed out|ReadTimeout|ConnectTimeout", "no answer in time"),
    (r"too many (5\d\d) error|error code (5\d\d)", r"the server answers with an error ({})"),
    (
        r"error code (40[13])",
        "access is refused ({}): give user and password in the address, or as "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    ),
    (r"error code (404)|not a valid.*JSON|<!doctype html", "no MLflow server answers there"),
)
"""Pattern of an error text, and its explanation; braces take the pattern's group."""


def store_error(error: Exception, uri: str) -> UnlearnbenchError:
    """The error to raise for one of MLflow or its libraries: one line, without secrets."""
    text = str(error)
    for pattern, explanation in _EXPLANATIONS:
        if found := re.search(pattern, text, re.IGNORECASE):
            reason = explanation.format(*(group for group in found.groups() if group))
            break
    else:
        # The text of an SQLAlchemyError is a statement and a link; the driver's is the reason.
        text = str(getattr(error, "orig", None) or text)
        reason = redact(text.strip().partition("\n")[0] or type(error).__name__, uri)[:300]
    return UnlearnbenchError(f"MLflow at {redact(uri)}: {reason}")


def check_store(uri: str) -> None:
    """Raise UnlearnbenchError within seconds if `uri` is not usable.

    A server is not contacted; a database is opened once, and an SQLite file created.
    """
    example = "give one such as http://localhost:5000 or sqlite:///mlflow.db"
    if not uri.strip():
        raise UnlearnbenchError(f"MLflow's address is empty; {example}")
    if uri.startswith(("http:", "https:")):
        try:
            parts = urlsplit(uri)
            wrong = "" if parts.hostname and parts.port != 0 else "no host and port"
        except ValueError as error:
            wrong = str(error)
        if wrong:
            raise UnlearnbenchError(f"MLflow at {redact(uri)}: not an address ({wrong}); {example}")
    elif _DATABASE.match(uri):
        _check_database(uri)


def _check_database(uri: str) -> None:
    from sqlalchemy import NullPool, create_engine, make_url, text
    from sqlalchemy.exc import SQLAlchemyError

    where = f"MLflow at {redact(uri)}"
    try:
        url = make_url(uri)
        sqlite = url.get_backend_name() == "sqlite"
        if sqlite and url.database and url.database != ":memory:":
            if Path(url.database).is_dir():
                raise UnlearnbenchError(
                    f"{where}: a folder, and SQLite needs a file; give one such as "
                    "sqlite:///folder/mlflow.db"
                )
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        seconds = {"timeout" if sqlite else "connect_timeout": DATABASE_SECONDS}
        engine = create_engine(url, poolclass=NullPool, connect_args=seconds)
        with engine.connect() as connection:
            connection.execute(text("PRAGMA schema_version" if sqlite else "SELECT 1"))
    except ImportError as error:
        raise UnlearnbenchError(
            f"{where}: its driver is not installed ({error.name}); install it, or give a server"
        ) from None
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise store_error(error, uri) from None


def store_uri(settings: TrackingSettings, folder: Path) -> str:
    """Address of the store: the setting, MLFLOW_TRACKING_URI, or SQLite in the sweep's folder."""
    default = f"sqlite:///{(folder / STORE).resolve()}"
    if settings.uri is not None:
        return settings.uri
    return os.environ.get("MLFLOW_TRACKING_URI") or default


def import_mlflow() -> tuple[type[Exception], ...]:
    """Import mlflow quietly; return the exceptions that a store or server can raise."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.exceptions import MlflowException
    from sqlalchemy import event
    from sqlalchemy.engine import Engine
    from sqlalchemy.exc import SQLAlchemyError

    # These log each created table as INFO and each failed attempt as WARNING; a failure is reported
    # once, by `store_error`. After the import, which sets the levels of loggers.
    for name in ("alembic", "mlflow.tracking"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("mlflow.store.db.utils", "mlflow.system_metrics", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)

    if not event.contains(Engine, "connect", _no_fsync):
        event.listen(Engine, "connect", _no_fsync)
    return MlflowException, SQLAlchemyError, OSError


def _no_fsync(connection: Any, _: Any) -> None:
    """Do not let SQLite wait for the disk at each of the eight commits of a record.

    After a power cut, runs can be logged again from the records.
    """
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA synchronous = OFF")
