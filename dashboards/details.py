"""What a run was made of, for the card of a point; equal parts are held once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from unlearnbench.records import Record

from .palette import rate_text
from .text import duration, flat

Section = tuple[str, tuple[tuple[str, str], ...]]
"""A title, with names and values."""


def collect(records: Iterable[Record]) -> dict[str, Any]:
    """parts: distinct sections; runs: by record id, the numbers of its sections, in order."""
    numbers: dict[Section, int] = {}
    runs = {
        record.id: [numbers.setdefault(part, len(numbers)) for part in sections(record)]
        for record in records
    }
    return {"parts": list(numbers), "runs": runs}


def sections(record: Record) -> list[Section]:
    """The resolved configuration of a run or anchor, and what the run took."""
    spec = record.spec
    method = _mapping(spec.get("method"))
    own = [
        ("learning rate", rate_text(record.learning_rate)),
        ("epochs", spec.get("epochs")),
        ("seed", record.seed),
    ]
    told = [("method", method.get("name")), *own, *_pairs(method, "hyperparameters")]
    found = [
        ("Method", told if record.kind == "run" else []),
        ("Retain term", flat(_mapping(method.get("retain")))),
        ("Training", flat(_mapping(spec.get("training")))),
        ("Evaluation", [("profile", record.profile), *flat(_mapping(spec.get("evaluation")))]),
        ("Model", flat(_mapping(spec.get("model")))),
        ("Data", flat(_mapping(spec.get("data")))),
        ("Run", _took(record)),
    ]
    return [
        (title, tuple((name, _text(value)) for name, value in pairs if value is not None))
        for title, pairs in found
        if any(value is not None for _, value in pairs)
    ]


def _took(record: Record) -> list[tuple[str, Any]]:
    origin = record.provenance
    memory = origin.get("peak_memory_mib")
    training = sum(e.training_seconds for e in record.epochs)
    evaluation = sum(e.evaluation_seconds for e in record.epochs)
    return [
        ("status", record.status),
        ("training", duration(training)),
        ("evaluation", duration(evaluation)),
        ("steps", len(record.steps) or None),
        ("device", origin.get("device")),
        ("host", origin.get("host")),
        ("peak memory", None if memory is None else f"{memory} MiB"),
        ("started", origin.get("started")),
    ]


def _pairs(values: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    return list(flat(_mapping(values.get(name))))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
