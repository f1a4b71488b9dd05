"""Replay of a sweep's folder to MLflow; runs that are already logged stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unlearnbench.analysis.selection import SELECTION_FILE
from unlearnbench.config.benchmark_section import WITHOUT_PLUGIN
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.files.bounded import parse_json
from unlearnbench.plan.plan import PLAN_FILE
from unlearnbench.results.records import Record, read_records
from unlearnbench.runtime.redaction import redact
from unlearnbench.tracking.mlflow.metric_points import milliseconds
from unlearnbench.tracking.mlflow.store import Span
from unlearnbench.tracking.sweep_tracker import SweepTracker

FILES = ("report.html", "results.csv", "attacks.csv", "sweep.log", SELECTION_FILE)
"""Files of a sweep's folder that its parent run gets at the end."""


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay."""

    uri: str
    """Address of the store, without user and password."""
    logged: int
    """Number of newly logged records."""
    records: int
    """Number of all records."""
    address: str | None
    """Address of the sweep's page; None for a store without a server."""


def replay(folder: Path, uri: str | None = None) -> ReplayResult:
    """Log every record of a sweep's folder that is not logged yet.

    Runs that an interrupted replay logged in part are replaced, and the sweep's own files as well.

    uri   of the store (default: as in the sweep's configuration)
    Raises: RecordError for a folder that is not a sweep's; UnlearnbenchError if MLflow fails.
    """
    config = sweep_config(folder)
    settings = config.tracking.model_copy(
        update={"enabled": True, "uri": config.tracking.uri if uri is None else uri}
    )
    messages: list[str] = []
    records = read_records(folder)
    with SweepTracker(
        settings, folder, config, warn=messages.append, seconds=3600.0, span=_span(records)
    ) as tracker:
        for record in sorted(records, key=lambda r: r.kind == "run"):  # start models first
            tracker.log(record)
        tracker.settle()
        if records:
            tracker.log_files([folder / name for name in FILES])
    if messages:
        raise UnlearnbenchError(f"{tracker.trouble}; start it, or give --uri")
    links = tracker.links
    return ReplayResult(
        redact(tracker.uri), tracker.logged, len(records), links.of_sweep if links else None
    )


def _span(records: Sequence[Record]) -> Span:
    """Start of the first record and end of the last one."""
    starts, ends = (
        [moment for record in records if (moment := milliseconds(record.provenance.get(key)))]
        for key in ("started", "finished")
    )
    return min(starts, default=None), max(ends, default=None)


def sweep_config(folder: Path) -> SweepConfig:
    """Read the configuration in `plan.json`; its benchmark need not be installed.

    Raises: RecordError.
    """
    path = folder / PLAN_FILE
    try:
        plan: Mapping[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        return SweepConfig.model_validate_json(json.dumps(plan["config"]), context=WITHOUT_PLUGIN)
    except FileNotFoundError:
        raise RecordError(f"{folder} is not a sweep folder: no {PLAN_FILE} in it") from None
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}); start the sweep again, which rewrites "
            "it and repeats no finished run"
        ) from None
