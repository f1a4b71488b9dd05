"""Leaderboard of several sweeps or groups: each record as one line of JSON with its own hash.

A line is the record without steps, host and evaluations; there is no text of questions or answers.
The hash detects damage, not numbers that were invented.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.base.hashing import decode_floats, document_hash, sealed_json
from unlearnbench.base.outputs import write_file
from unlearnbench.config.metric_plan import NO_CHOICES
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.epoch_metrics import record_schema
from unlearnbench.results.records import Record, parse_record, record_document
from unlearnbench.results.table import TableRow, table

_PRIVATE = ("host", "process", "interruptions")
"""Provenance that stays with its group."""
_ROW_KEYS = ("model.name", "forget_fraction", "method", "learning_rate", "seed", "evaluate_at")
"""Settings of a run that a table's row shows."""


@dataclass(frozen=True)
class Refusal:
    """A line that is not on the board, with the reason."""

    place: str
    """`board.jsonl:12`"""
    id: str
    """Record id, `?` if unreadable."""
    reason: str


@dataclass(frozen=True)
class Board:
    """The merged records, one for each id, and what was refused."""

    records: tuple[Record, ...]
    equal: int
    """Number of repeated lines: same run, same numbers."""
    refused: tuple[Refusal, ...]

    @property
    def lines(self) -> list[str]:
        """A line of each record, in the order of their ids."""
        return [_line(record) for record in self.records]


def export_lines(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, line) of each record that a sweep's page shows; failed runs have no line.

    Raises: RecordError if the folder has no record, or a damaged one.
    """
    for record in Results.read(folder).records:
        if record.status != "failed":
            yield str(folder / "records" / record.place), _line(record)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, line) of every line of a file. Raises: RecordError if it has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: cannot be read: {reason}") from None
    if not text.strip():
        raise RecordError(f"{path}: empty; give a file of `leaderboard export`")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def write_lines(board: Board, path: Path) -> None:
    """Write a board's lines, whole or not at all."""
    write_file(path, "".join(f"{line}\n" for line in board.lines), "the leaderboard")


def merge(lines: Iterable[tuple[str, str]]) -> Board:
    """Merge `lines`, each (place, text), to one board; their order does not matter.

    - Of several lines of one id the run that started first stays. Others are refused unless their
      numbers are the same.
    - Records of one model and split need the same data, and runs the same start weights: those with
      the most frequent value stay.
    """
    refused: list[Refusal] = []
    by_id: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    for location, text in lines:
        try:
            record = _read(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            refused.append(Refusal(location, "?", f"{type(error).__name__}: {error}"))
        else:
            by_id[record.id].append((location, record))
    kept: list[tuple[str, Record]] = []
    equal = 0
    for same in by_id.values():
        first, *others = sorted(same, key=lambda pair: str(pair[1].provenance.get("started", "~")))
        kept.append(first)
        for spot, record in others:
            if _numbers(record) == _numbers(first[1]):
                equal += 1
            else:
                reason = f"it has the id of {first[0]}, which started earlier, and other numbers"
                refused.append(Refusal(spot, record.id, reason))
    for key in ("data", "weights"):
        kept = _consistent(kept, key, refused)
    records = sorted((record for _, record in kept), key=lambda record: record.id)
    return Board(tuple(records), equal, tuple(refused))


def tables(records: Iterable[Record]) -> dict[str, tuple[TableRow, ...]]:
    """A table for each profile: numbers by different evaluation rules do not compare.

    And for each pair of headline metrics that is not TOFU's: `a and b, tofu@1a2b3c4d`.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in distinguished(records):
        headline = record_schema(record, NO_CHOICES).headline
        pair = "" if headline == default_headline() else f"{' and '.join(headline.columns)}, "
        groups[pair + record.profile].append(record)
    return {name: table(group) for name, group in sorted(groups.items())}


def distinguished(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, with settings in which runs of one method differ as hyper-parameters.

    Groups may train differently (batch size, schedule, adapters): seeds are averaged only if all of
    it is the same.
    """
    records = tuple(records)
    settings = {record.id: dict(_leaves(record.spec)) for record in records if record.kind == "run"}
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for record in records:
        if record.id in settings:
            groups[record.model, record.forget_fraction, record.method].append(record.id)
    more: dict[str, dict[str, Any]] = {}
    for ids in groups.values():
        keys = sorted({key for id_ in ids for key in settings[id_]})
        apart = [k for k in keys if len({str(settings[id_].get(k)) for id_ in ids}) > 1]
        more |= {id_: {key: settings[id_].get(key) for key in apart} for id_ in ids}
    return tuple(_with_hyperparameters(r, more[r.id]) if more.get(r.id) else r for r in records)


def _with_hyperparameters(record: Record, more: Mapping[str, Any]) -> Record:
    method = record.spec["method"]
    method = method | {"hyperparameters": method["hyperparameters"] | more}
    return replace(record, spec={**record.spec, "method": method})


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every setting of a run that a table's row does not show."""
    for key, value in settings.items():
        name = f"{above}{key}"
        if name in _ROW_KEYS or name == "data":
            continue
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, json.dumps(value) if isinstance(value, list | tuple) else value


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


def _consistent(
    records: list[tuple[str, Record]], key: str, refused: list[Refusal]
) -> list[tuple[str, Record]]:
    """The records that have the most frequent value of `key` on their panel."""
    kept: list[tuple[str, Record]] = []
    groups: dict[tuple[Any, ...], list[tuple[str, Record]]] = defaultdict(list)
    for pair in records:
        # A retain model has weights of its own.
        owner = pair[1].kind == "retain" if key == "weights" else ""
        groups[pair[1].model, pair[1].forget_fraction, owner].append(pair)
    for group in groups.values():
        counts = Counter(str(record.provenance.get(key)) for _, record in group)
        usual = min(counts, key=lambda value: (-counts[value], value))
        for location, record in group:
            if (part := str(record.provenance.get(key))) == usual:
                kept.append((location, record))
                continue
            reason = f"its {key} are {part}, and {usual} of most of its model and split"
            refused.append(Refusal(location, record.id, reason))
    return kept
