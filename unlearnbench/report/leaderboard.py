"""Leaderboard of several sweeps or groups: each record as one line of JSON with its own hash.

A line is the record without steps, host and evaluations; there is no text of questions or answers.
Its numbers are those of the sweep's table when the line was exported, so that a board shows the
same numbers as the page of each sweep. A run of a sweep that chooses (`select`, `tune`) states the
choices that it was a trial of, or reports, so that a board shows the same settings, too. A line
also says by which code and settings of metrics its numbers were computed.

The hash of a line detects damage, not numbers that were invented.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unlearnbench.analysis.board_choices import CHOICES, choices_by_run
from unlearnbench.analysis.results import Results
from unlearnbench.base.hashing import decode_floats, document_hash, sealed_json
from unlearnbench.config.metric_plan import NO_CHOICES
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.finalize import NUMBERS
from unlearnbench.results.records import Record, parse_record, record_document
from unlearnbench.results.rules import COMPUTED_BY, METRICS, record_schema, rules_of
from unlearnbench.results.table_records import with_numbers

_PRIVATE = ("host", "process", "interruptions", NUMBERS)
"""Provenance that stays with its group, or that says nothing without the observations."""


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


@dataclass(frozen=True)
class _Line:
    """A line that could be read."""

    location: str
    """`board.jsonl:3`."""
    text: str
    record: Record

    @property
    def order(self) -> tuple[str, bool, str]:
        """Sort key: of several lines of one run, the first stays.

        A run that started earlier comes first. Of two exports of one record, the one that says by
        what its numbers were computed comes first, and then the text decides, so that the order of
        the files does not matter.
        """
        made = self.record.provenance
        # "~" sorts behind every date.
        return str(made.get("started", "~")), COMPUTED_BY not in made, self.text


def exported(folder: Path) -> Board:
    """Return the records that a sweep's page shows, with the numbers of its table.

    Failed runs have no line.

    Raises:
        RecordError: If the folder has no record, or a damaged one.
    """
    results = Results.read(folder)
    records = [record for record in results.records if record.status != "failed"]
    choices = choices_by_run(results.choices)
    rules = rules_of(results.records, results.table.metrics)
    rows = (*results.rows, *results.attacked)
    as_recorded = {row.run_id for row in rows if not row.key}
    lines: list[Record] = []
    for record in with_numbers(records, results.table):
        stated: dict[str, Any] = {}
        if record.id in choices:
            stated[CHOICES] = dict(choices[record.id])
        of_record = rules.of(record)
        if of_record.code and record.id not in as_recorded:
            stated |= {COMPUTED_BY: of_record.code, METRICS: dict(of_record.metrics)}
        lines.append(replace(record, provenance={**record.provenance, **stated}))
    return Board(tuple(lines))


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, line) of every line of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def merge(lines: Iterable[tuple[str, str]]) -> Board:
    """Merge lines to one board. Their order does not matter.

    - Of several lines of one id the run that started first stays. Others are refused unless their
      numbers are the same.
    - Records of one model and split need the same data, and runs the same start weights: those with
      the most frequent value stay.

    Args:
        lines: Place and text of each.
    """
    refused: list[str] = []
    read: list[_Line] = []
    for location, text in lines:
        try:
            read.append(_Line(location, text, _read(text)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            refused.append(
                f"{location}: left out, because it is no line of a leaderboard ({reason})"
            )
    kept: dict[str, _Line] = {}
    for line in sorted(read, key=lambda line: line.order):
        first = kept.setdefault(line.record.id, line)
        if _numbers(line.record) == _numbers(first.record):
            # Sweeps may share runs, and each line states the choices of its own sweep.
            stated = {**_stated(line.record), **_stated(first.record)}
            kept[line.record.id] = replace(first, record=_stating(first.record, stated))
        else:
            refused.append(
                f"{line.location}: record {line.record.id}: left out: {_why_refused(line, first)}"
            )
    ordered = [kept[id_] for id_ in sorted(kept)]
    for key in ("data", "weights"):
        ordered, odd = _with_usual(ordered, key)
        refused += odd
    return Board(tuple(line.record for line in ordered), tuple(refused))


def _why_refused(line: _Line, first: _Line) -> str:
    """Say why a line is refused whose record is there with other numbers."""
    started = [one.record.provenance.get("started") for one in (line, first)]
    if started[0] is not None and started[0] == started[1]:
        return (
            f"it is the run of {first.location}, whose numbers were computed by other code or "
            "settings; export both again by one version"
        )
    return f"it has the id of {first.location}, which started earlier, and other numbers"


def _with_usual(lines: list[_Line], key: str) -> tuple[list[_Line], list[str]]:
    """Return the lines with the most frequent value of their group, and why others are left out."""
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for line in lines:
        counts[_group(line.record, key)][str(line.record.provenance.get(key))] += 1
    usual = {
        group: min(of_group, key=lambda value: (-of_group[value], value))
        for group, of_group in counts.items()
    }
    kept: list[_Line] = []
    refused: list[str] = []
    for line in lines:
        value = str(line.record.provenance.get(key))
        most = usual[_group(line.record, key)]
        if value == most:
            kept.append(line)
        else:
            reason = f"its {key} are {value}, and {most} of most of its model and split"
            refused.append(f"{line.location}: record {line.record.id}: left out: {reason}")
    return kept, refused


def _stated(record: Record) -> Mapping[str, Any]:
    """Return the choices that a line states, by sweep."""
    stated: Mapping[str, Any] = record.provenance.get(CHOICES, {})
    return stated


def _stating(record: Record, choices: Mapping[str, Any]) -> Record:
    """Return a record that states choices, or the record as it is if there are none."""
    if not choices:
        return record
    return replace(record, provenance={**record.provenance, CHOICES: dict(choices)})


def _group(record: Record, key: str) -> tuple[Any, ...]:
    """Records that need the same `key`; a retain model has weights of its own."""
    return record.model, record.forget_fraction, key == "weights" and record.kind == "retain"


def boards(records: Iterable[Record]) -> dict[str, Results]:
    """Return results for each profile: numbers by different evaluation rules do not compare.

    And for each pair of headline metrics that is not TOFU's: `a and b, tofu@1a2b3c4d`.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        headline = record_schema(record, NO_CHOICES).headline
        pair = "" if headline == default_headline() else f"{' and '.join(headline.columns)}, "
        groups[pair + record.profile].append(record)
    return {name: Results.of(group, name=name) for name, group in sorted(groups.items())}


def _line(record: Record) -> str:
    provenance = {k: v for k, v in record.provenance.items() if k not in _PRIVATE}
    short = {"provenance": provenance, "steps": [], "evaluations": {}, "attacked_evaluations": {}}
    document = json.loads(sealed_json(record_document(record) | short))
    return json.dumps(document, sort_keys=True, ensure_ascii=False)


def _read(text: str) -> Record:
    """Return the record of a line.

    Raises:
        ValueError: Or KeyError, TypeError or AttributeError, if the line is damaged.
    """
    document = json.loads(text)
    if document["sha256"] != document_hash(document):
        raise ValueError("its content is not what was exported (sha256)")
    return parse_record(Path(), json.loads(text, object_hook=decode_floats))


def _numbers(record: Record) -> list[tuple[int, str, Mapping[str, float]]]:
    """Return what is compared of two lines: numbers by epoch, variant and column."""
    return [
        (
            result.epoch,
            result.variant,
            {name: value for name, value in result.metrics.items() if value is not None},
        )
        for result in (*record.epochs, *record.attacked)
    ]
