"""Find the finished runs of a sweep's folder that have to be repeated, and the reasons.

The id of a run is a hash of everything that its numbers depend on. If the same configuration is
planned again and an id has changed, an input that the configuration does not spell out has changed:
rows, a model folder, a chat template, or a rule of this version of unlearnbench. The old record
stays in the folder, but no view counts it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from unlearnbench.api.identity import Id, identity_of, reasons_of
from unlearnbench.base.errors import RecordError
from unlearnbench.base.redaction import redact_tree
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.results.records import Record, read_records

REASON_OF_FIELD = reasons_of(RunSpec)
"""Reasons by the field that has changed, for fields that no configuration states. If a stated field
differs, the runs are different settings, and neither repeats the other."""
OTHER_REASON = "this version of unlearnbench computes them by other rules"
"""Reason if no field has changed, but the id has."""


@dataclass(frozen=True)
class RepeatedRun:
    """A planned run whose setting has a finished record under another id."""

    run: RunSpec
    record_id: str
    """Id of the finished record."""
    reasons: tuple[str, ...]
    """Everything that has changed since, as sentences without a full stop."""


def repeated_runs(
    planned: Iterable[RunSpec], folder: Path, references: Iterable[str] | None = None
) -> tuple[RepeatedRun, ...]:
    """Find the planned runs whose setting has a finished record, but under another id.

    Args:
        planned: All runs of the plan.
        folder: The sweep's folder, which need not exist.
        references: Ids of the records of start and retain models, as far as they are known.
    """
    runs = list(planned)
    planned_ids = {run.id for run in runs}
    # Reading all records of a large sweep takes seconds.
    if not _has_other_records(folder, planned_ids.union(references or ())):
        return ()
    try:
        records = read_records(folder)
    except RecordError:
        # The sweep sets damaged records aside and says so. Nothing is to be added.
        return ()

    recorded_ids = {record.id for record in records if record.status == "finished"}
    old_of_setting: dict[str, tuple[Record, RunSpec]] = {}
    for record, spec in _readable_runs(records):
        if record.id not in planned_ids:
            old_of_setting[_stated_setting(spec)] = record, spec

    repeated: list[RepeatedRun] = []
    for run in runs:
        old = old_of_setting.get(_stated_setting(run))
        if run.id in recorded_ids or old is None:
            continue
        record, spec = old
        repeated.append(RepeatedRun(run, record.id, tuple(_reasons(spec, run))))
    return tuple(repeated)


def repetition_lines(repeated: Iterable[RepeatedRun]) -> list[str]:
    """Return a line for each set of reasons: how many finished runs are repeated, and why."""
    count_of_reasons = Counter(run.reasons for run in repeated)
    lines: list[str] = []
    for reasons, count in count_of_reasons.items():
        runs = "1 finished run" if count == 1 else f"{count} finished runs"
        lines.append(f"{runs} will be repeated, because {' and '.join(reasons)}")
    return lines


def _has_other_records(folder: Path, known_ids: set[str]) -> bool:
    """Whether the folder has a record of another id. Only names of folders are read."""
    names = {path.parent.name for path in folder.glob("records/*/record.json")}
    # Names with a dot are of failed and stopped runs, and of damaged records.
    return any("." not in name for name in names - known_ids)


def _readable_runs(records: Iterable[Record]) -> Iterator[tuple[Record, RunSpec]]:
    """Yield the finished runs whose specs this version can read."""
    for record in records:
        if record.kind != "run" or record.status != "finished":
            continue
        try:
            yield record, RunSpec.model_validate_json(json.dumps(dict(record.spec)))
        except (ValidationError, ValueError, TypeError):
            # Its method or benchmark is not installed, or the spec is of another version.
            continue


def _stated_setting(run: RunSpec) -> str:
    """Return what the configuration states of a run, as text that is equal for equal settings."""
    # Specs in records have no secrets.
    return json.dumps(redact_tree(identity_of(run, Id.STATED)), sort_keys=True)


def _reasons(old: RunSpec, new: RunSpec) -> Iterator[str]:
    """Yield a reason for each derived field in which two specs of one setting differ."""
    changed = [name for name in REASON_OF_FIELD if getattr(old, name) != getattr(new, name)]
    for name in changed:
        yield REASON_OF_FIELD[name]
    if not changed:
        yield OTHER_REASON
