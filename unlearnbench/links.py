"""Where a sweep's runs are in MLflow, kept as `mlflow.json` beside its records.

Written while runs are logged to a server, read when a page is made; a page that cannot read it has
no links, and nothing worse.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from unlearnbench.redaction import redact

LINKS_FILE = "mlflow.json"
_ID = re.compile(r"[0-9A-Za-z_-]+")


@dataclass(frozen=True)
class Links:
    """A sweep's runs in one MLflow."""

    server: str
    """Where its pages are: `https://mlflow.example`."""
    experiment: str
    sweep: str
    """MLflow's id of the parent run."""
    runs: Mapping[str, str] = field(default_factory=dict[str, str])
    """MLflow's id of each run, by record id."""

    @property
    def of_sweep(self) -> str:
        """Address of the parent run's page."""
        return self._address(self.sweep)

    @property
    def of_experiment(self) -> str:
        """Address of the experiment's table of runs."""
        # Since 3.0 MLflow opens with pages for language model applications, unless it is told.
        return f"{self.server}/#/experiments/{self.experiment}/runs?workflowType=machine_learning"

    def by_record(self) -> dict[str, str]:
        """Address of each run's page, by record id."""
        return {record: self._address(run) for record, run in self.runs.items()}

    def _address(self, run: str) -> str:
        return f"{self.server}/#/experiments/{self.experiment}/runs/{run}"


def server_of(uri: str) -> str | None:
    """Where the pages of a tracking URI are, without user and password; None where it has none."""
    parts = urlsplit(redact(uri))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def write_links(links: Links, folder: Path) -> None:
    """Keep them in a sweep's folder; replaced at once, so that nobody reads half of them."""
    part = folder / f".{LINKS_FILE}.{os.getpid()}"
    part.write_text(json.dumps(asdict(links), indent=1) + "\n", encoding="utf-8")
    part.replace(folder / LINKS_FILE)


def read_links(folder: Path) -> Links | None:
    """What was kept; None where nothing was, and where it is no such file any more."""
    try:
        held = json.loads((folder / LINKS_FILE).read_text(encoding="utf-8"))
        server = server_of(held["server"])
        runs = {str(record): str(run) for record, run in held["runs"].items()}
        links = Links(str(server), str(held["experiment"]), str(held["sweep"]), runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    # They become links of a page: a file that was tampered with must not choose where to.
    ids = (links.experiment, links.sweep, *runs.values())
    return links if server and all(map(_ID.fullmatch, ids)) else None
