"""A sweep's folder, logged to MLflow after the fact: what is there already stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unlearnbench.bounded import parse_json
from unlearnbench.entries import milliseconds
from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.plan import PLAN_FILE
from unlearnbench.records import Record, read_records
from unlearnbench.redaction import redact
from unlearnbench.selection import SELECTION_FILE
from unlearnbench.settings import SweepConfig
from unlearnbench.tracking.store import Span
from unlearnbench.tracking.tracker import Tracker

FILES = ("report.html", "results.csv", "sweep.log", SELECTION_FILE)
"""Of a sweep's folder, what its parent run gets; `plan.json` it has from the beginning."""


@dataclass(frozen=True)
class Replayed:
    """What logging a folder has done."""

    uri: str
    """Where to, without user and password."""
    logged: int
    """Records that were not there before."""
    records: int
    """All that are there now."""
    address: str | None
    """Of the sweep's page; None for a store without pages of its own."""


def replay(folder: Path, uri: str | None = None) -> Replayed:
    """Log every record of a sweep's folder that is not logged yet.

    What an interrupted replay has logged in part is logged anew, and the sweep's own files again.

    uri   default: as in the sweep's configuration
    Raises: RecordError for a folder that is no sweep's; UnlearnbenchError where MLflow fails.
    """
    config = sweep_config(folder)
    settings = config.tracking.model_copy(
        update={"enabled": True, "uri": config.tracking.uri if uri is None else uri}
    )
    messages: list[str] = []
    records = read_records(folder)
    with Tracker(
        settings, folder, config, warn=messages.append, seconds=3600.0, span=_span(records)
    ) as tracker:
        for record in sorted(records, key=lambda r: r.kind == "run"):  # anchors first
            tracker.log(record)
        tracker.settle()
        if records:
            tracker.log_files([folder / name for name in FILES])
    if messages:
        raise UnlearnbenchError(f"{tracker.trouble}; start it, or give --uri")
    links = tracker.links
    return Replayed(
        redact(tracker.uri), tracker.logged, len(records), links.of_sweep if links else None
    )


def _span(records: Iterable[Record]) -> Span:
    """When the first record was begun and the last one ended."""
    began = [milliseconds(record.provenance.get("started")) for record in records]
    ended = [milliseconds(record.provenance.get("finished")) for record in records]
    known = [one for one in began if one], [one for one in ended if one]
    return min(known[0], default=None), max(known[1], default=None)


def sweep_config(folder: Path) -> SweepConfig:
    """The configuration that `plan.json` holds. Raises: RecordError."""
    path = folder / PLAN_FILE
    try:
        held: Mapping[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        return SweepConfig.model_validate_json(json.dumps(held["config"]))
    except FileNotFoundError:
        raise RecordError(f"{folder}: no {PLAN_FILE} in it, so it is no sweep's folder") from None
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}); start the sweep again: it writes it anew "
            "and keeps finished runs"
        ) from None
