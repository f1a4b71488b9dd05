"""Where MLflow keeps what is logged, and MLflow itself, quiet and quick to give up.

MLflow tries a database that does not answer ten times, for minutes, and passes on what its
libraries raise. So an address is checked before MLflow sees it, and errors are put in words here.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.execution import TrackingSettings
from unlearnbench.redaction import redact

STORE = "mlflow.db"
ENVIRONMENT = {
    # MLflow's defaults wait two minutes seven times over, or as long as the server asks for.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",  # MLflow reads whole numbers only
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Standard output is for results: two lines about each run would stand among them.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


DATABASE_SECONDS = 5
"""Longest wait for a database to accept a connection."""
_DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?:")
_WORDS = (
    (r"Connection refused", "the connection is refused: nothing listens there; is it running?"),
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
"""What libraries say, by a pattern, and the same in words; braces take the pattern's group."""


def explained(error: Exception, uri: str) -> str:
    """One line about what went wrong at `uri`, without its secrets."""
    text = str(error)
    for pattern, words in _WORDS:
        if found := re.search(pattern, text, re.IGNORECASE):
            return words.format(*(group for group in found.groups() if group))
    # An SQLAlchemyError's own text is a statement with a link; the driver's is the reason.
    text = str(getattr(error, "orig", None) or text)
    return redact(text.strip().partition("\n")[0] or type(error).__name__, uri)[:300]


def check_store(uri: str) -> None:
    """Raise UnlearnbenchError where nothing can be kept at `uri`, within seconds.

    A server is not asked; a database is opened once, and made where it is an SQLite file.
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
        own = url.get_backend_name() == "sqlite"
        if own and url.database and url.database != ":memory:":
            if Path(url.database).is_dir():
                raise UnlearnbenchError(f"{where}: a folder, and SQLite needs a file; {_NAME_ONE}")
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        seconds = {"timeout" if own else "connect_timeout": DATABASE_SECONDS}
        engine = create_engine(url, poolclass=NullPool, connect_args=seconds)
        with engine.connect() as connection:
            connection.execute(text("PRAGMA schema_version" if own else "SELECT 1"))
    except ImportError as error:
        raise UnlearnbenchError(
            f"{where}: its driver is not installed ({error.name}); pip install it, or give a server"
        ) from None
    except (SQLAlchemyError, OSError, ValueError) as error:
        raise UnlearnbenchError(f"{where}: {explained(error, uri)}") from None


_NAME_ONE = "name one, such as sqlite:///folder/mlflow.db"


def store_uri(settings: TrackingSettings, folder: Path) -> str:
    """Where runs go: the setting, else MLFLOW_TRACKING_URI, else SQLite in the sweep's folder."""
    default = f"sqlite:///{(folder / STORE).resolve()}"
    own = settings.uri
    return own if own is not None else os.environ.get("MLFLOW_TRACKING_URI") or default


def import_mlflow() -> tuple[type[Exception], ...]:
    """Import mlflow quietly; returns the exceptions that a store or a server can raise."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # These report at INFO each table that they create, and as warnings each try that fails; what
    # comes of it is one message of ours.
    for name in ("alembic", "mlflow.tracking"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("mlflow.store.db.utils", "mlflow.system_metrics", "urllib3.connectionpool"):
        logging.getLogger(name).setLevel(logging.ERROR)
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
