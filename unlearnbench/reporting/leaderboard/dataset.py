"""Leaderboards as a data set of the library `datasets`: a row per line and epoch, in typed columns.

Columns are declared, not guessed: files of one benchmark have the same, whatever is missing in
them. Needs the extra `datasets`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench.errors import RecordError
from unlearnbench.reporting.leaderboard.entry import (
    PROVENANCE,
    SCHEMA,
    BoardEntry,
    BoardRules,
    precision_of,
    rules_of,
    unpack,
)
from unlearnbench.reporting.leaderboard.export import read_lines
from unlearnbench.reporting.leaderboard.merge import merge
from unlearnbench.runtime.optional_packages import import_optional

if TYPE_CHECKING:
    from datasets import Dataset

_TEXT = ("benchmark", "id", "kind", "status", "model", "split", "method", "hyperparameters")
_HASHES = ("data", "weights", "log", "sha256")
_NUMBERS = ("learning_rate", "training_seconds", "evaluation_seconds")
_TYPES = {
    **dict.fromkeys((*_TEXT, "profile", "precision", *_HASHES), "string"),
    **dict.fromkeys(("identity", "metric_versions", *PROVENANCE), "string"),
    **dict.fromkeys(("schema", "seed", "epoch"), "int64"),
    **dict.fromkeys(_NUMBERS, "float64"),
}
VALUES = "values."
"""Beginning of the columns of values by question, `values.forget.probability`."""
RETAIN = "values.retain_model"
"""Column of the retain model's truth ratios."""


def leaderboard_dataset(*paths: str | Path) -> Dataset:
    """Read files of `leaderboard export` and `merge`; returns a row for each line and epoch.

    Metrics are float64 columns by their names. The values by question are columns of lists,
    `values.forget.probability`: [questions], float64, NaN where undefined.
    Raises: RecordError for lines that `merge` would refuse, with file and line of the first one,
    and where the library is missing.
    """
    try:
        library = import_optional("datasets")
    except ImportError:
        raise RecordError(
            "a leaderboard as a data set needs datasets: pip install 'unlearnbench[datasets]'"
        ) from None
    if not paths:
        raise RecordError("no file is given; give files of `leaderboard export`")
    board = merge(line for path in paths for line in read_lines(Path(path)))
    if board.refused:
        first, *more = board.refused
        raise RecordError(
            f"{first.place}: record {first.id}: {first.reason}"
            + (f" (and {len(more)} more lines)" if more else "")
            + "; `unlearnbench leaderboard merge FILE ... --out FILE` leaves out such lines"
        )
    rows = [row for entry in board.entries for row in _rows(entry)]
    numbers, lists = _columns(board.entries, rows)
    types = {name: library.Value(kind) for name, kind in _TYPES.items()}
    types |= {name: library.Value("float64") for name in numbers}
    types |= {name: library.List(library.Value("float64")) for name in lists}
    table = {name: [row.get(name) for row in rows] for name in types}
    found: Dataset = library.Dataset.from_dict(table, features=library.Features(types))
    return found


def _columns(
    entries: Iterable[BoardEntry], rows: Iterable[Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Names of metrics and of values by question, of the benchmarks of these lines.

    Of any schema: with the columns that lines of the latest one have.
    """
    numbers: set[str] = set()
    lists = {RETAIN, *(name for row in rows for name in row if name.startswith(VALUES))}
    for entry in entries:
        own = rules_of(entry)
        rules = BoardRules(SCHEMA, own.benchmark, own.profile)
        numbers |= {*rules.plan.own, *(name for one in entry["epochs"] for name in one["metrics"])}
        lists |= {f"{VALUES}{of}.{key}" for of, keys in rules.evidence.items() for key in keys}
    return sorted(numbers), sorted(lists)


def _rows(entry: BoardEntry) -> Iterator[dict[str, Any]]:
    rules, spec, provenance = rules_of(entry), entry["identity"], entry["provenance"]
    chosen = spec["method"]["hyperparameters"] if entry["kind"] == "run" else {}
    common = {name: entry.get(name) for name in _TYPES} | {
        "split": str(entry["forget_fraction"]),
        "precision": precision_of(entry),
        "identity": _json(spec),
        "metric_versions": _json(entry.get("versions", {})),
        "hyperparameters": _json(chosen),
        **{name: _text(provenance.get(name)) for name in PROVENANCE},
    }
    goal = None if entry["retain"] is None else unpack(entry["retain"]).tolist()
    for epoch in entry["epochs"]:
        lists = {
            f"{VALUES}{of}.{key}": values.tolist()
            for of, arrays in rules.arrays(epoch["evidence"]).items()
            for key, values in arrays.items()
        }
        own = {name: epoch[name] for name in ("epoch", "log", *_NUMBERS[1:])}
        yield common | own | epoch["metrics"] | lists | {RETAIN: goal}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
