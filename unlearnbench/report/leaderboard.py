"""Leaderboard of several sweeps or groups: each record as one line of JSON with its own hash.

A line is the record without steps, host and evaluations; there is no text of questions or answers.
The hash detects damage, not numbers that were invented.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.analysis.results import Results
from unlearnbench.base.hashing import decode_floats, document_hash, sealed_json
from unlearnbench.config.metric_plan import NO_CHOICES
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record, parse_record, record_document
from unlearnbench.results.rules import record_schema
from unlearnbench.results.table import TableRow

_PRIVATE = ("host", "process", "interruptions")
"""Provenance that stays with its group."""


@dataclass(frozen=True)
class Board:
    """The merged records, one for each id, and what was refused."""

    records: tuple[Record, ...]
    refused: tuple[str, ...] = ()
    """Place, id and reason of each line that is left out."""

    @property
    def text(self) -> str:
        """A line of each record, in the order of their ids."""
        return "".join(f"{_line(record)}\n" for record in self.records)


def exported(folder: Path) -> Board:
    """The records that a sweep's page shows; failed runs have no line.

    Raises: RecordError if the folder has no record, or a damaged one.
    """
    records = Results.read(folder).records
    return Board(tuple(record for record in records if record.status != "failed"))


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, line) of every line of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def merge(lines: Iterable[tuple[str, str]]) -> Board:
    """Merge `lines`, each (place, text), to one board; their order does not matter.

    - Of several lines of one id the run that started first stays. Others are refused unless their
      numbers are the same.
    - Records of one model and split need the same data, and runs the same start weights: those with
      the most frequent value stay.
    """
    refused: list[str] = []
    read: list[tuple[str, Record]] = []
    for location, text in lines:
        try:
            read.append((location, _read(text)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            refused.append(f"{location}: left out: {type(error).__name__}: {error}")
    kept: dict[str, tuple[str, Record]] = {}
    for location, record in sorted(read, key=lambda p: str(p[1].provenance.get("started", "~"))):
        first, known = kept.setdefault(record.id, (location, record))
        if _numbers(record) != _numbers(known):
            reason = f"it has the id of {first}, which started earlier, and other numbers"
            refused.append(f"{location}: record {record.id}: left out: {reason}")
    pairs = [kept[name] for name in sorted(kept)]
    for key in ("data", "weights"):
        counts: dict[Any, Counter[str]] = defaultdict(Counter)
        for _, record in pairs:
            counts[_group(record, key)][str(record.provenance.get(key))] += 1
        usual = {name: min(of, key=lambda v: (-of[v], v)) for name, of in counts.items()}
        for location, record in [*pairs]:
            value, most = str(record.provenance.get(key)), usual[_group(record, key)]
            if value != most:
                reason = f"its {key} are {value}, and {most} of most of its model and split"
                refused.append(f"{location}: record {record.id}: left out: {reason}")
                pairs.remove((location, record))
    return Board(tuple(record for _, record in pairs), tuple(refused))


def _group(record: Record, key: str) -> tuple[Any, ...]:
    """Records that need the same `key`; a retain model has weights of its own."""
    return record.model, record.forget_fraction, key == "weights" and record.kind == "retain"


def tables(records: Iterable[Record]) -> dict[str, tuple[TableRow, ...]]:
    """A table for each profile: numbers by different evaluation rules do not compare.

    And for each pair of headline metrics that is not TOFU's: `a and b, tofu@1a2b3c4d`.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        headline = record_schema(record, NO_CHOICES).headline
        pair = "" if headline == default_headline() else f"{' and '.join(headline.columns)}, "
        groups[pair + record.profile].append(record)
    return {name: table_of(group).rows for name, group in sorted(groups.items())}


def _line(record: Record) -> str:
    provenance = {k: v for k, v in record.provenance.items() if k not in _PRIVATE}
    short = {"provenance": provenance, "steps": [], "evaluations": {}, "attacked_evaluations": {}}
    document = json.loads(sealed_json(record_document(record) | short))
    return json.dumps(document, sort_keys=True, ensure_ascii=False)


def _read(text: str) -> Record:
    """The record of a line. Raises: ValueError, KeyError, TypeError, AttributeError."""
    document = json.loads(text)
    if document["sha256"] != document_hash(document):
        raise ValueError("its content is not what was exported (sha256)")
    return parse_record(Path(), json.loads(text, object_hook=decode_floats))


def _numbers(record: Record) -> list[Any]:
    results = (*record.epochs, *record.attacked)
    return [(result.epoch, result.variant, dict(result.metrics)) for result in results]
