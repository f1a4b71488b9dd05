"""Addresses of a sweep's runs in its tracker, stored as `links.json` in its folder.

Those of a local store begin with the store, or with # for the one in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearnbench.files.atomic import write_text

LINKS_FILE = "links.json"


def write_links(folder: Path, sweep: str, runs: Mapping[str, str | None]) -> None:
    """Store the addresses of the sweep and of each run by record id."""
    text = json.dumps({"sweep": sweep, "runs": dict(runs)}, indent=1)
    write_text(folder / LINKS_FILE, text + "\n")


def sweep_link(folder: Path) -> str | None:
    """Address of the sweep; None where none is stored."""
    return _read(folder).get("sweep")


def run_links(folder: Path) -> dict[str, str]:
    """Address of each run on a server, for a page."""
    runs = _read(folder).get("runs", {})
    return {name: link for name, link in runs.items() if str(link).startswith(("http:", "https:"))}


def _read(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / LINKS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a page without links is better than none
        return {}
    return found
