"""Dataset inputs of a sweep's runs in MLflow, made from `plan.json` without loading rows.

Three per split: forget rows, retain rows, and evaluated questions. The digest is the
fingerprint of all rows that a run uses, so that equal digests are equal data. MLflow's own dataset
classes (`mlflow.data`) compute digest and profile from loaded rows, and its `MetaDataset` has no
profile, so the entities are built here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import Benchmark, SplitKey, split_name, split_of, split_order
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig
from unlearnbench.files.bounded import parse_json
from unlearnbench.plan.plan import PLAN_FILE
from unlearnbench.results.records import Record
from unlearnbench.tracking.mlflow.run_entries import fingerprint

CONTEXT = "mlflow.data.context"
"""MLflow's tag for the use of a dataset."""
FIELDS = ("question", "answer")


@dataclass(frozen=True)
class Data:
    """Data of a sweep according to its plan."""

    config: SweepConfig
    fingerprints: Mapping[SplitKey, str] = field(default_factory=dict[SplitKey, str])
    """Hash of all rows by split."""
    rows: Mapping[SplitKey, Mapping[str, int]] = field(
        default_factory=dict[SplitKey, Mapping[str, int]]
    )
    """Number of rows of each set by split; empty for a plan of an earlier version."""


def read_data(folder: Path, config: SweepConfig) -> Data:
    """Read the data of `plan.json`; empty if it is damaged."""
    try:
        plan = parse_json((folder / PLAN_FILE).read_text(encoding="utf-8"))
        fingerprints = {split_of(f): str(one) for f, one in plan.get("data", {}).items()}
        rows = {split_of(f): dict(sets) for f, sets in plan.get("rows", {}).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return Data(config)
    return Data(config, fingerprints, rows)


def inputs_of_sweep(data: Data) -> list[Any]:
    """The `DatasetInput`s of all runs of a sweep."""
    return [
        one
        for key in sorted(data.fingerprints, key=split_order)
        for one in _inputs(data, key, data.fingerprints[key], trained=True)
    ]


def inputs_of(record: Record, data: Data) -> list[Any]:
    """The `DatasetInput`s of a run; start and retain models have only the evaluated questions."""
    digest = fingerprint(record)
    if digest is None:
        return []
    trained = record.kind == "run"
    return _inputs(data, record.forget_fraction, digest, trained=trained)


def _inputs(data: Data, key: SplitKey, digest: str, *, trained: bool) -> list[Any]:
    # The counts are of the plan's data; a record of other data has its own digest and no counts.
    counts = data.rows.get(key, {}) if data.fingerprints.get(key) == digest else {}
    forget, retain = split_name("forget", key), split_name("retain", key)
    parts = [("evaluation", f"evaluation-{forget}", _question_counts(counts, data.config))]
    if trained:
        parts[:0] = [
            (role, name, {"num_rows": counts[role]} if role in counts else {})
            for role, name in (("forget", forget), ("retain", retain))
        ]
    return [_input(data.config.data, role, name, digest, rows) for role, name, rows in parts]


def _question_counts(counts: Mapping[str, int], config: SweepConfig) -> dict[str, int]:
    """Number of evaluated questions by set; a profile may limit it."""
    most = profile_of(config.evaluation).rows
    sets = {
        name.removesuffix("_perturbed"): count if most is None else min(count, most)
        for name, count in counts.items()
        if name not in ("forget", "retain")
    }
    return {"num_rows": sum(sets.values()), **sets} if sets else {}


def _input(data: Benchmark, role: str, name: str, digest: str, rows: dict[str, int]) -> Any:
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


def _source(data: Benchmark, split: str | None) -> tuple[str, dict[str, Any]]:
    """MLflow's type of source, and the fields of that type."""
    if data.folder is not None:
        return "local", {"uri": data.folder}
    if data.repository is None:
        settings = data.model_dump(mode="json")
        return "code", {"tags": {"mlflow.source.name": "unlearnbench"}, "settings": settings}
    return "hugging_face", {
        "path": data.repository.name,
        "config_name": split,
        "data_dir": None,
        "data_files": None,
        "split": "train",
        "revision": data.repository.revision,
    }
