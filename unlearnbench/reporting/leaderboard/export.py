"""Export of sweep folders to lines, and conversion of lines to records and tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.evaluation.headlines import headline_entry
from unlearnbench.files.bounded import BoundsError, numbered_lines
from unlearnbench.files.outputs import writing
from unlearnbench.reporting.leaderboard.entry import (
    BEFORE,
    SAME,
    BoardEntry,
    board_line,
    find_benchmark,
    leaves,
    own_headline,
    panel,
    precision_of,
    rules_of,
)
from unlearnbench.reporting.leaderboard.merge import Refusal
from unlearnbench.reporting.leaderboard.verify import verify_line
from unlearnbench.reporting.report import Report, build_report
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import TableRow, table

_ROW_KEYS = (
    *("model.name", "forget_fraction", "method.name", "learning_rate", "seed", "evaluate_at"),
)
"""Keys of an identity that a table row shows anyway."""


def export(folder: Path, refused: list[Refusal]) -> Iterator[tuple[str, str]]:
    """Export each record that a sweep's page shows, as (place, line).

    refused  gets the records that have no line, such as those of failed runs
    Raises: RecordError if the folder has no record, or a damaged one.
    """
    report = build_report(folder)
    records, benchmark = report.records, _benchmark(report)
    tested = find_benchmark(benchmark).headline.forgotten.test is not None
    retains = [r for r in records if r.kind == "retain" and 0 in r.evaluations]
    for record in records:
        if record.kind != "run" and record.attacked:
            continue  # lines are plain evaluations, which a record of its own has
        place = str(folder / "records" / record.place)
        here = (record.model, record.forget_fraction)
        fitting: list[Record | None] = [r for r in retains if (r.model, r.forget_fraction) == here]
        if record.kind == "retain":
            fitting = [record] if record in retains else []
        if not tested:
            fitting = [None]
        why_not = "there is no evaluation of its retain model"
        if record.status == "failed":
            fitting, why_not = [], "its run failed"
        for retain in fitting:
            try:
                goal = None if retain is None else retain.evaluations[0]
                line = board_line(record, goal, benchmark)
                verify_line(line)
            except (UnlearnbenchError, ValueError) as error:
                why_not = str(error)
            else:
                yield place, line
                break
        else:
            refused.append(Refusal(place, record.id, why_not))


def _benchmark(report: Report) -> str:
    """Name of the benchmark of a folder; of one by an earlier version that of TOFU's schema."""
    sections = [r.spec.get("data") for r in report.records] + [report.config.get("data")]
    names = (one.get("source") for one in sections if isinstance(one, Mapping))
    return next((name for name in names if isinstance(name, str)), BEFORE)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Read (place, line) of every line of a file. Raises: RecordError if it has none."""
    empty = True
    try:
        for number, line in numbered_lines(path):
            if line.strip():
                empty = False
                # Bytes that are not UTF-8 become surrogates, for which only this line is rejected.
                yield f"{path}:{number}", line.decode(errors="surrogateescape")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    except BoundsError as error:
        raise RecordError(f"{path}: {error}") from None
    if empty:
        raise RecordError(f"{path}: empty; give a file of `leaderboard export`")


def write_lines(lines: Sequence[str], path: Path) -> None:
    """Write a file of lines atomically."""
    with writing(path, "the leaderboard") as part:
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def records_of(entries: Iterable[BoardEntry]) -> tuple[Record, ...]:
    """Convert lines to records without answers and steps, for `table` and `make_report`.

    Groups may train differently: whatever differs between runs of one method (batch size,
    schedule, adapters) counts as another hyper-parameter, so that seeds are averaged only if all
    of it is the same.
    """
    entries = tuple(entries)
    differing = _differing(entries)
    return tuple(_record(entry, differing.get(entry["method"], ())) for entry in entries)


def tables(entries: Iterable[BoardEntry]) -> dict[str, tuple[TableRow, ...]]:
    """Make a table for each profile: numbers by different evaluation rules do not compare.

    And for each benchmark whose two numbers are not TOFU's: `riddles, tofu@1a2b3c4d`.
    """
    groups: dict[str, list[BoardEntry]] = defaultdict(list)
    for entry in entries:
        own, profile = own_headline(entry), entry["profile"]
        groups[f"{own}, {profile}" if own else profile].append(entry)
    return {name: table(records_of(found)) for name, found in sorted(groups.items())}


def _record(entry: BoardEntry, differing: Iterable[str]) -> Record:
    spec: dict[str, Any] = {}
    if "benchmark" in entry:
        spec["data"] = {"source": entry["benchmark"]}
    if entry["kind"] == "run":
        settings, method = _settings(entry["identity"]), entry["identity"]["method"]
        more = {name: settings.get(name) for name in differing}
        spec["method"] = method | {"hyperparameters": method["hyperparameters"] | more}
    return Record(
        id=entry["id"],
        **{key: entry[key] for key in SAME},
        spec=spec,
        precision=precision_of(entry),
        epochs=tuple(
            EpochResult(e["epoch"], e["metrics"], e["training_seconds"], e["evaluation_seconds"])
            for e in entry["epochs"]
        ),
        provenance=entry["provenance"]
        | {"data": entry["data"], "weights": entry["weights"]}
        | headline_entry(rules_of(entry).headline),
    )


def _differing(entries: Iterable[BoardEntry]) -> dict[str, set[str]]:
    """Settings, other than those of a row, in which runs on one panel differ, by method."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if entry["kind"] == "run":
            place = (entry["method"], own_headline(entry), *panel(entry))
            groups[place].append(_settings(entry["identity"]))
    differing: dict[str, set[str]] = defaultdict(set)
    for (method, *_), found in groups.items():
        for name in {name for settings in found for name in settings}:
            # A missing one is a value, too: identities leave out some defaults.
            if len({settings.get(name) for settings in found}) > 1:
                differing[method].add(name)
    return differing


def _settings(identity: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run but those of a table row and hyper-parameters, by dotted name."""
    return {
        name: json.dumps(value) if isinstance(value, list) else value
        for name, value in leaves(identity)
        if name not in _ROW_KEYS
        and not name.startswith(("method.hyperparameters", "method.retain"))
        and value != {}
    }
