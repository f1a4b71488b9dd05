"""The numbers of a record's epochs: those in it, and those that are computed from its files, once.

A retain model's record has no number that is relative to the start model, which is evaluated after
it, and a record may be older than a metric. Such columns are computed from the stored evaluations,
and written beside them with the report:

    records/<id>/numbers.json   numbers by epoch, and the hash of all that they depend on

A column that is in the record is not computed again, unless the configuration has come to give its
metric other settings (`evaluation.metrics`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.registry import Kind, offers
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.hashing import decode_floats, document_hash, sealed_json
from unlearnbench.base.outputs import write_file
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.summary import values_of
from unlearnbench.results.records import Record, StoredEvaluations, StoredFile
from unlearnbench.results.rules import record_schema, recorded_metrics
from unlearnbench.results.table import Numbers

NUMBERS_FILE = "numbers.json"
_CODE: tuple[Kind, ...] = ("metrics", "benchmarks")
Values = Mapping[str, float | None]
References = Mapping[tuple[str, str, SplitKey], Record]
"""Records of start and retain models by kind, model and split."""


def references_of(records: Iterable[Record]) -> References:
    """The start and retain models among `records`; none where there are two for one place."""
    recordss: dict[tuple[str, str, SplitKey], list[Record]] = {}
    for record in records:
        if record.kind != "run" and record.epochs:
            location = (record.kind, record.model, record.forget_fraction)
            recordss.setdefault(location, []).append(record)
    return {location: ones[0] for location, ones in recordss.items() if len(ones) == 1}


def store_numbers(records: Sequence[Record], chosen: MetricChoices | None = None) -> None:
    """Write the numbers that records lack, and a command would compute again."""
    references = references_of(records)
    for record in records:
        numbers(record, references, chosen, store=True)


def numbers(
    record: Record,
    references: References,
    chosen: MetricChoices | None = None,
    *,
    store: bool = False,
) -> Mapping[int, Numbers]:
    """The numbers of `record` by epoch and column; None where undefined or not finite.

    Columns that the record lacks are computed from its files, and from those of its start and
    retain model, if they are whole.

    chosen  metrics that the configuration names now; default: those that it named for the record
    """
    now = recorded_metrics(record) if chosen is None else chosen
    schema, affected = record_schema(record, now), changed_columns(record, now)
    known = {column.name for column in schema.plan.columns}
    fill: dict[int, set[str]] = {}
    for result in record.epochs:
        empty = {name for name in known if result.metrics.get(name) is None}
        lacking = empty if record.kind == "retain" else known - result.metrics.keys()
        fill[result.epoch] = lacking | affected
    values: Mapping[int, Values] = {}
    if any(fill.values()):
        values = _computed(record, references, schema, now, store=store)
    return {
        item.epoch: Numbers.finite(
            {**item.metrics, **{n: values.get(item.epoch, {}).get(n) for n in fill[item.epoch]}}
        )
        for item in record.epochs
    }


def changed_columns(record: Record, now: MetricChoices) -> Set[str]:
    """The columns that a record has by other settings of metrics than the configuration's."""
    before = recorded_metrics(record)
    names = before.keys() | now.keys()
    changed = {name for name in names if before.get(name, {}) != now.get(name, {})}
    return record_schema(record, now).plan.affected(changed)


def _computed(
    record: Record,
    references: References,
    schema: BenchmarkSchema,
    chosen: MetricChoices,
    *,
    store: bool,
) -> Mapping[int, Values]:
    """All metrics by epoch, from the files; none of an epoch whose files do not give them."""
    evaluations, retain, start = (
        item.evaluations
        if item is not None and isinstance(item.evaluations, StoredEvaluations)
        else None
        for item in (
            record,
            references.get(("retain", *record.panel)),
            references.get(("fine-tuned", *record.panel)),
        )
    )
    if evaluations is None:
        return {}
    path = evaluations.folder / NUMBERS_FILE
    others = [None if item is None else item.files.get(0) for item in (retain, start)]
    key = {
        "code": [[o.name, o.source, o.digest] for k in _CODE for o in offers(k)],
        "rules": [record.profile, record.spec.get("data", {}), chosen],
        "files": [f.digest if f else None for f in (*others, *evaluations.files.values())],
    }
    inputs = document_hash(json.loads(sealed_json(key)))
    with suppress(OSError, ValueError, KeyError):
        stored = json.loads(path.read_text(encoding="utf-8"), object_hook=decode_floats)
        if stored["inputs"] == inputs:
            return {int(epoch): values for epoch, values in stored["numbers"].items()}
    subject, forget = schema.headline.forgotten.name, schema.sets("forget")
    result: dict[int, Values] = {}
    for epoch, file in evaluations.files.items():
        # Damage is reported where the files are needed; other versions may have other sets.
        with suppress(UnlearnbenchError, OSError, LookupError, ValueError):
            models = (None if other is None else _reference(other) for other in others)
            result[epoch] = values_of(schema.plan, forget, subject, file.read(), *models)
    if store and len(result) == len(evaluations.files):
        write_file(path, sealed_json({"inputs": inputs, "numbers": result}), "the numbers")
    return result


@lru_cache(maxsize=8)
def _reference(file: StoredFile) -> Evaluation:
    return file.read()
