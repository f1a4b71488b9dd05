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
"""Provenance that is not exported. It names a machine, or means nothing without observations."""


@dataclass(frozen=True)
class Board:
    """The merged records, one for each id, and the reasons why lines were refused."""

    records: tuple[Record, ...]
    refused: tuple[str, ...] = ()
    """Place, id and reason of each line that is left out."""

    @property
    def text(self) -> str:
        """The board as JSON lines, in the order of its records."""
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
        """Sort key. The first of several lines of one run stays.

        A run that started earlier comes first. Of two exports of one record, the one that says by
        which code its numbers were computed comes first. If both do, the text decides, so that the
        order of the files does not matter.
        """
        provenance = self.record.provenance
        # "~" sorts after every date.
        return str(provenance.get("started", "~")), COMPUTED_BY not in provenance, self.text


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

    - Of several lines of one id, the run that started first stays. Other lines are refused unless
      their numbers are the same.
    - Records of one model and split need the same data, and runs also the same start weights. The
      records with the most frequent value stay.

    Args:
        lines: Place and text of each line.
    """
    readable, refused = _readable(lines)
    kept: dict[str, _Line] = {}
    for line in sorted(readable, key=lambda line: line.order):
        first = kept.setdefault(line.record.id, line)
        if _numbers(line.record) == _numbers(first.record):
            # Sweeps may share runs, and each line states the choices of its own sweep.
            stated = {**_stated(line.record), **_stated(first.record)}
            kept[line.record.id] = replace(first, record=_stating(first.record, stated))
        else:
            refused.append(
                f"{line.location}: record {line.record.id}: left out: {_why_refused(line, first)}"
            )
    ordered = [kept[record_id] for record_id in sorted(kept)]
    for key in ("data", "weights"):
        ordered, reasons = _with_usual(ordered, key)
        refused += reasons
    return Board(tuple(line.record for line in ordered), tuple(refused))


def _readable(lines: Iterable[tuple[str, str]]) -> tuple[list[_Line], list[str]]:
    """Return the lines that can be read, and why all others are left out."""
    readable: list[_Line] = []
    refused: list[str] = []
    for location, text in lines:
        try:
            readable.append(_Line(location, text, _read(text)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            refused.append(
                f"{location}: left out, because it is no line of a leaderboard ({reason})"
            )
    return readable, refused


def _why_refused(line: _Line, first: _Line) -> str:
    """Say why a line is refused, whose record an earlier line has with other numbers."""
    started = line.record.provenance.get("started")
    is_same_run = started is not None and started == first.record.provenance.get("started")
    if is_same_run:
        return (
            f"it is the run of {first.location}, whose numbers were computed by other code or "
            "settings; export both again by one version"
        )
    return f"it has the id of {first.location}, which started earlier, and other numbers"


def _with_usual(lines: list[_Line], key: str) -> tuple[list[_Line], list[str]]:
    """Keep the lines that have the most frequent value of their group.

    Args:
        lines: Lines of a board.
        key: Key of the provenance whose values have to be equal.

    Returns:
        The lines that are kept, and why all others are left out.
    """
    counts_of_group: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for line in lines:
        value = str(line.record.provenance.get(key))
        counts_of_group[_group(line.record, key)][value] += 1

    kept: list[_Line] = []
    refused: list[str] = []
    for line in lines:
        value = str(line.record.provenance.get(key))
        usual = _most_frequent(counts_of_group[_group(line.record, key)])
        if value == usual:
            kept.append(line)
        else:
            reason = f"its {key} are {value}, and {usual} of most of its model and split"
            refused.append(f"{line.location}: record {line.record.id}: left out: {reason}")
    return kept, refused


def _most_frequent(counts: Counter[str]) -> str:
    """Return the most frequent value. Of equally frequent ones, it is the first by the alphabet."""
    return min(counts, key=lambda value: (-counts[value], value))


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
    """Name the group of records that need the same value of `key`."""
    # A retain model does not begin from the weights of the start model.
    has_own_weights = key == "weights" and record.kind == "retain"
    return record.model, record.forget_fraction, has_own_weights


def boards(records: Iterable[Record]) -> dict[str, Results]:
    """Return results for each profile, because numbers by different rules cannot be compared.

    Records that are ranked by other metrics than TOFU's have results of their own. Their name
    begins with the metrics: `a and b, tofu@1a2b3c4d`.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        headline = record_schema(record, NO_CHOICES).headline
        is_default = headline == default_headline()
        metrics = "" if is_default else f"{' and '.join(headline.columns)}, "
        groups[metrics + record.profile].append(record)
    return {name: Results.of(group, name=name) for name, group in sorted(groups.items())}


def _line(record: Record) -> str:
    """Write the line of a record, with the hash of its content."""
    provenance = {name: value for name, value in record.provenance.items() if name not in _PRIVATE}
    document = {
        **record_document(record),
        "provenance": provenance,
        "steps": [],
        "evaluations": {},
        "attacked_evaluations": {},
    }
    sealed = json.loads(sealed_json(document))
    return json.dumps(sealed, sort_keys=True, ensure_ascii=False)


def _read(text: str) -> Record:
    """Return the record of a line.

    Raises:
        ValueError: If the line is no JSON, or if its content was changed.
        KeyError: If a key is missing.
        TypeError: If a value has another type.
        AttributeError: If a value has another type.
    """
    document = json.loads(text)
    if document["sha256"] != document_hash(document):
        raise ValueError("its content is not what was exported (sha256)")
    return parse_record(Path(), json.loads(text, object_hook=decode_floats))


def _numbers(record: Record) -> list[tuple[int, str, Mapping[str, float]]]:
    """Return the numbers by which two lines are compared: epoch, variant, and number by column."""
    numbers: list[tuple[int, str, Mapping[str, float]]] = []
    for result in (*record.epochs, *record.attacked):
        defined = {name: value for name, value in result.metrics.items() if value is not None}
        numbers.append((result.epoch, result.variant, defined))
    return numbers
