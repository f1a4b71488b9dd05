"""A sweep's data as MLflow's dataset inputs, from `plan.json`: no rows are loaded for it.

Three of each forget fraction: what is forgotten, what is kept, and what is asked. The digest is our
fingerprint, which covers all rows that a run can see, so that equal digests are equal data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearnbench.bounded import parse_json
from unlearnbench.data.benchmark import split_name
from unlearnbench.entries import fingerprint
from unlearnbench.evaluation.profiles import profile_of
from unlearnbench.plan import PLAN_FILE
from unlearnbench.records import Record
from unlearnbench.settings import DataSettings, SweepConfig

CONTEXT = "mlflow.data.context"
"""MLflow's own tag for what a dataset was used for."""
FIELDS = ("question", "answer")


@dataclass(frozen=True)
class Data:
    """What a sweep's plan says of its data."""

    config: SweepConfig
    fingerprints: Mapping[float, str] = field(default_factory=dict[float, str])
    """By forget fraction."""
    rows: Mapping[float, Mapping[str, int]] = field(default_factory=dict[float, Mapping[str, int]])
    """Rows of each set, by forget fraction; none in a plan of an earlier version."""


def read_data(folder: Path, config: SweepConfig) -> Data:
    """What `plan.json` says; nothing where it does not say it."""
    try:
        held = parse_json((folder / PLAN_FILE).read_text(encoding="utf-8"))
        fingerprints = {float(f): str(one) for f, one in held.get("data", {}).items()}
        rows = {float(f): dict(sets) for f, sets in held.get("rows", {}).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return Data(config)
    return Data(config, fingerprints, rows)


def inputs_of_sweep(data: Data) -> list[Any]:
    """Everything that its runs can see, as `DatasetInput`s."""
    return [
        one
        for fraction, digest in sorted(data.fingerprints.items())
        for one in _inputs(data, fraction, digest, trained=True)
    ]


def inputs_of(record: Record, data: Data) -> list[Any]:
    """What a run was trained on and asked, as `DatasetInput`s; anchors were only asked."""
    digest = fingerprint(record)
    if digest is None:
        return []
    trained = record.kind == "run"
    return _inputs(data, record.forget_fraction, digest, trained=trained)


def _inputs(data: Data, fraction: float, digest: str, *, trained: bool) -> list[Any]:
    # Counts belong to the plan's data; a record of other data keeps its own digest, and has none.
    counts = data.rows.get(fraction, {}) if data.fingerprints.get(fraction) == digest else {}
    forget, retain = split_name("forget", fraction), split_name("retain", 1 - fraction)
    asked = _asked(counts, data.config)
    parts = [("evaluation", f"evaluation-{forget}", asked)]
    if trained:
        told = [("forget", forget), ("retain", retain)]
        parts = [(role, name, _count(counts, role)) for role, name in told] + parts
    return [_input(data.config.data, role, name, digest, rows) for role, name, rows in parts]


def _count(counts: Mapping[str, int], role: str) -> dict[str, int]:
    return {"num_rows": counts[role]} if role in counts else {}


def _asked(counts: Mapping[str, int], config: SweepConfig) -> dict[str, int]:
    """Questions of one evaluation, by set; a profile may ask only the first ones."""
    most = profile_of(config.evaluation).rows
    sets = {
        name.removesuffix("_perturbed"): count if most is None else min(count, most)
        for name, count in counts.items()
        if name not in ("forget", "retain")
    }
    return {"num_rows": sum(sets.values()), **sets} if sets else {}


def _input(data: DataSettings, role: str, name: str, digest: str, rows: dict[str, int]) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    kind, source = _source(data, name if role != "evaluation" else None)
    columns = [{"name": one, "type": "string", "required": True} for one in FIELDS]
    dataset = Dataset(
        name=f"{data.source}-{name}",
        digest=digest,
        source_type=kind,
        source=json.dumps(source),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps(rows) if rows else None,
    )
    return DatasetInput(dataset, [InputTag(CONTEXT, role)])


def _source(data: DataSettings, split: str | None) -> tuple[str, dict[str, Any]]:
    """MLflow's kind of source, and what it stores of one of that kind."""
    if data.source == "synthetic":
        made = data.model_dump(mode="json", exclude={"path", "hub_id", "revision"})
        return "code", {"tags": {"mlflow.source.name": "unlearnbench"}, "settings": made}
    if data.path is not None:
        return "local", {"uri": str(data.path)}
    return "hugging_face", {
        "path": data.hub_id,
        "config_name": split,
        "data_dir": None,
        "data_files": None,
        "split": "train",
        "revision": data.revision,
    }
