"""Configuration, duration and device of each run, for its card; equal parts are stored once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unlearnbench.console import format_duration
from unlearnbench.results.records import Record

from ...formatting import flatten, rate_text, value_text

Part = tuple[str, tuple[tuple[str, str], ...]]
"""A title, with names and values."""


def run_details(records: Iterable[Record]) -> dict[str, Any]:
    """Collect the distinct parts, and by record id the numbers of its parts, in order."""
    numbers: dict[Part, int] = {}
    runs = {
        record.id: [numbers.setdefault(part, len(numbers)) for part in _parts(record)]
        for record in records
    }
    return {"parts": list(numbers), "runs": runs}


def _parts(record: Record) -> list[Part]:
    spec = record.spec
    method: dict[str, Any] = dict(spec.get("method") or {})
    setting = [
        ("method", method.get("name")),
        ("learning rate", rate_text(record.learning_rate)),
        ("epochs", spec.get("epochs")),
        ("seed", record.seed),
        *flatten(method.get("hyperparameters")),
    ]
    parts: list[tuple[str, list[tuple[str, Any]]]] = [
        ("Method", setting if record.kind == "run" else []),
        ("Retain term", [*flatten(method.get("retain"))]),
        ("Training", [*flatten(spec.get("training"))]),
        ("Evaluation", [("profile", record.profile), *flatten(spec.get("evaluation"))]),
        ("Model", [*flatten(spec.get("model"))]),
        ("Data", [*flatten(spec.get("data"))]),
        ("Run", _run(record)),
    ]
    return [
        (title, tuple((name, value_text(value)) for name, value in pairs if value is not None))
        for title, pairs in parts
        if any(value is not None for _, value in pairs)
    ]


def _run(record: Record) -> list[tuple[str, Any]]:
    provenance = record.provenance
    memory = provenance.get("peak_memory_mib")
    return [
        ("status", record.status),
        ("training", format_duration(sum(e.training_seconds for e in record.epochs))),
        ("evaluation", format_duration(sum(e.evaluation_seconds for e in record.epochs))),
        ("steps", len(record.steps) or None),
        ("device", provenance.get("device")),
        ("host", provenance.get("host")),
        ("peak memory", None if memory is None else f"{memory} MiB"),
        ("started", provenance.get("started")),
    ]
