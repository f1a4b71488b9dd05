"""Links to a sweep's runs in MLflow, stored as `mlflow.json` in its folder.

Written while runs are logged to a server, read when a page is made; a page without a readable file
has no links.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, TypeAdapter

from unlearnbench.files.atomic import write_text
from unlearnbench.runtime.redaction import redact

LINKS_FILE = "mlflow.json"
Id = Annotated[str, Field(pattern="^[0-9A-Za-z_-]+$")]
"""Part of a link on a page, whose target a manipulated file must not choose."""
_WORKFLOW = "workflowType=machine_learning"
"""Without it, MLflow 3 opens its pages for language model applications."""


@dataclass(frozen=True)
class Links:
    """Ids of a sweep's runs on one MLflow server."""

    server: str
    """Address of its pages: `https://mlflow.example`."""
    experiment: Id
    sweep: Id
    """MLflow's id of the parent run."""
    runs: Mapping[str, Id] = field(default_factory=dict[str, str])
    """MLflow's id of each run, by record id."""
    view: Id | None = None
    """Name of the view of the runs, with its order and columns; None for MLflow's own."""

    @property
    def of_sweep(self) -> str:
        """Address of the parent run's page."""
        return self._address(self.sweep)

    @property
    def of_experiment(self) -> str:
        """Address of the experiment's table of runs: of the sweep's, best first, if it is known."""
        shared = f"viewStateShareKey={self.view}&" if self.view else ""
        return f"{self.server}/#/experiments/{self.experiment}/runs?{shared}{_WORKFLOW}"

    def by_record(self) -> dict[str, str]:
        """Address of each run's page, by record id."""
        return {record: self._address(run) for record, run in self.runs.items()}

    def _address(self, run: str) -> str:
        return f"{self.server}/#/experiments/{self.experiment}/runs/{run}?{_WORKFLOW}"


def server_of(uri: str) -> str | None:
    """Address of a tracking URI's pages, without user and password; None if it has none."""
    parts = urlsplit(redact(uri))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def write_links(links: Links, folder: Path) -> None:
    """Store the links in a sweep's folder."""
    write_text(folder / LINKS_FILE, json.dumps(asdict(links), indent=1) + "\n")


def read_links(folder: Path) -> Links | None:
    """Read the stored links; None if there are none, or if the file is damaged."""
    try:
        links = TypeAdapter(Links).validate_json((folder / LINKS_FILE).read_bytes())
        server = server_of(links.server)
    except (OSError, ValueError):
        return None
    return replace(links, server=server) if server else None
