"""TOFU from a folder of its JSON-lines files or from the hub, every row checked.

Both have the same tables under the same names (`full`, `forget10`, `retain90`, ...); only those of
the asked fractions are read. A row that does not fit is an error that names its file, line and
column; so are tables that do not fit each other, such as a retain set of another version.

Forget and retain rows may have a column more, `score`, for methods that read it: a number from 0
(unlearn) to 1 (learn), or a list with one for each token of the answer and the one that ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unlearnbench import hub
from unlearnbench.bounded import BoundsError, expanded, numbered_lines, parse_json, shortened
from unlearnbench.data.benchmark import Benchmark, Question, Split, split_name
from unlearnbench.data.tables import (
    Table,
    check_disjoint,
    check_parallel,
    check_partition,
    check_width,
)
from unlearnbench.errors import DataError, did_you_mean
from unlearnbench.settings import DataSettings

FRACTIONS = (0.01, 0.05, 0.10)
"""Forget fractions that TOFU publishes."""
TOLERANCE = 1e-9
"""How far a forget fraction may lie from a published one."""

TABLE_BYTES = 64 << 20
"""A file of rows; TOFU's largest has 1 MiB."""
ROW_BYTES = 1 << 20
"""A row; TOFU's longest has 4 kB."""

_FACTS = ("real_authors_perturbed", "world_facts_perturbed")  # three wrong answers, no paraphrase


@dataclass(frozen=True)
class RawRow:
    """A row as it was read, and where it stands."""

    place: str
    """`folder/full.json:12`, or `locuslab/TOFU/full.json:12`."""
    columns: Mapping[str, object]


Reader = Callable[[str], Sequence[RawRow]]


def load(settings: DataSettings, fractions: Sequence[float]) -> Benchmark:
    """TOFU at these forget fractions, without refusals, pretraining rows and fingerprint."""
    published = {fraction: _published(fraction) for fraction in fractions}
    names = _table_names(sorted(set(published.values())))
    if settings.path is None:
        origin = settings.hub_id
        read = _hub_reader(settings, names)
    else:
        origin = settings.path
        read = _folder_reader(_folder(settings.path), names)
    tables = {name: _checked(name, origin, read(name)) for name in names}
    return Benchmark(
        name="tofu",
        full=tables["full"].rows,
        splits={given: _split(given, true, tables) for given, true in published.items()},
        retain_perturbed=tables["retain_perturbed"].rows,
        real_authors=tables[_FACTS[0]].rows,
        world_facts=tables[_FACTS[1]].rows,
        refusals=(),
    )


def _published(fraction: float) -> float:
    for known in FRACTIONS:
        if abs(fraction - known) <= TOLERANCE:
            return known
    offers = ", ".join(f"{known:g}" for known in FRACTIONS)
    raise DataError(f"forget_fractions: TOFU has no split for {fraction:.10g}; it has {offers}")


def _table_names(fractions: Sequence[float]) -> tuple[str, ...]:
    names = ["full"]
    for fraction in fractions:
        forget = split_name("forget", fraction)
        names += [forget, split_name("retain", 1 - fraction), f"{forget}_perturbed"]
    return (*names, "retain_perturbed", *_FACTS)


def _folder(path: str) -> Path:
    try:
        return expanded(path)
    except BoundsError as error:
        raise DataError(f"data.path: {shortened(path)[1:-1]}: {error}") from error


def _folder_reader(folder: Path, names: Sequence[str]) -> Reader:
    """Reads `NAME.json` in `folder`; all files that are missing are reported at once."""
    if not folder.is_dir():
        raise DataError(f"data.path: {folder} is not a folder; give the one with TOFU's full.json")
    missing = [f"{name}.json" for name in names if not (folder / f"{name}.json").is_file()]
    if missing:
        raise DataError(
            f"data.path: {folder} lacks {', '.join(missing)}; download them from the hub's "
            f"dataset, or leave data.path out to fetch all"
        )
    return lambda name: _json_lines(folder / f"{name}.json")


def _json_lines(path: Path, shown: str = "") -> list[RawRow]:
    """Every row of a file; `shown`: how messages name it, in place of its path."""
    shown = shown or str(path)
    try:
        return [
            RawRow(f"{shown}:{number}", _json_object(f"{shown}:{number}", line))
            for number, line in numbered_lines(path, TABLE_BYTES, ROW_BYTES)
            if line.strip()
        ]
    except OSError as error:
        raise DataError(f"{shown}: cannot be read ({error.strerror})") from error
    except BoundsError as error:
        raise DataError(f"{shown}: {error}") from error


def _json_object(place: str, line: bytes) -> Mapping[str, object]:
    if len(line) > ROW_BYTES:
        raise DataError(f"{place}: more than {ROW_BYTES} bytes on one line; a row has fewer")
    try:
        value: object = parse_json(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{place}:{error.start + 1}: not UTF-8; fetch the file again") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{place}:{error.colno}: not a JSON object on one line ({error.msg}); the file is cut "
            f"off or damaged, fetch it again"
        ) from error
    except BoundsError as error:
        raise DataError(f"{place}: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}:1: expected a JSON object, got {_kind(value)}")
    return {str(key): item for key, item in value.items()}


def hub_repository(settings: DataSettings) -> hub.Repository | None:
    """The hub's, where rows are read from it."""
    if settings.source != "tofu" or settings.path is not None:
        return None
    return hub.Repository("dataset", settings.hub_id, settings.revision)


def _hub_reader(settings: DataSettings, names: Sequence[str]) -> Reader:
    """Reads `NAME.json` of the hub's data set, from its cache once they were fetched."""
    files = tuple(f"{name}.json" for name in names)
    source = hub.Repository("dataset", settings.hub_id, settings.revision)
    try:
        folder = hub.snapshot(source, files)
    except hub.HubError as error:
        raise DataError(
            f"{settings.hub_id}: the hub gave nothing ({error}); with no network, take a folder of "
            f"TOFU's JSON-lines files: --set data.path=FOLDER"
        ) from error
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise DataError(
            f"{settings.hub_id}: the hub's data set lacks {', '.join(missing)}; name one with "
            "TOFU's files in data.hub_id, and the revision that has them"
        )
    return lambda name: _json_lines(folder / f"{name}.json", f"{settings.hub_id}/{name}.json")


def _checked(name: str, origin: str, rows: Sequence[RawRow]) -> Table:
    if not rows:
        raise DataError(f"{origin}: {name} has no rows; fetch it again")
    table = Table(
        name=f"{origin} {name}",
        places=tuple(row.place for row in rows),
        rows=tuple(_question(name, row) for row in rows),
    )
    check_width(table)
    return table


def _question(name: str, row: RawRow) -> Question:
    question, answer = _text(row, "question"), _text(row, "answer")
    if not name.endswith("_perturbed"):
        return Question(question, answer, score=_score(row), place=row.place)
    wrong = _texts(row, "perturbed_answer")
    if name in _FACTS:
        return Question(question, answer, perturbed_answers=wrong)
    return Question(
        question,
        answer,
        paraphrased_answer=_text(row, "paraphrased_answer"),
        perturbed_answers=wrong,
        paraphrased_question=_text(row, "paraphrased_question"),
    )


def _column(row: RawRow, column: str) -> object:
    if column not in row.columns:
        hint = did_you_mean(column, row.columns)
        raise DataError(f"{row.place}: column {column!r} is missing{hint}; TOFU has it in this set")
    return row.columns[column]


def _text(row: RawRow, column: str) -> str:
    return _valid_text(row.place, repr(column), _column(row, column))


def _texts(row: RawRow, column: str) -> tuple[str, ...]:
    value = _column(row, column)
    if isinstance(value, str):
        return (_valid_text(row.place, repr(column), value),)
    if not isinstance(value, list):
        raise DataError(
            f"{row.place}: column {column!r} must be a list of texts, not {_kind(value)}"
        )
    items: list[object] = list(value)
    if not items:
        raise DataError(
            f"{row.place}: column {column!r} is empty; it takes one wrong answer or more"
        )
    return tuple(
        _valid_text(row.place, f"{column!r} item {number}", item)
        for number, item in enumerate(items, 1)
    )


def _score(row: RawRow) -> float | tuple[float, ...] | None:
    """The column `score`, which a row may have: a number, or a list of them."""
    value = row.columns.get("score")
    if value is None:
        return None
    if not isinstance(value, list):
        return _valid_score(row.place, "column 'score'", value)
    items: list[object] = list(value)
    if not items:
        raise DataError(f"{row.place}: column 'score' is empty; give one number, or one a token")
    return tuple(
        _valid_score(row.place, f"column 'score' item {number}", item)
        for number, item in enumerate(items, 1)
    )


def _valid_score(place: str, column: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise DataError(
        f"{place}: {column} must be a number from 0 (unlearn) to 1 (learn), got {_shown(value)}"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _valid_text(place: str, column: str, value: object) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place}: column {column} must be a text, not {_kind(value)}")
    if not value.strip():
        raise DataError(f"{place}: column {column} is blank; every question and answer needs words")
    if len(value) > ROW_BYTES:
        raise DataError(f"{place}: column {column} has {len(value)} characters; write fewer")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"{place}: column {column} holds half a character (a lone surrogate)")
    return value


def _kind(value: object) -> str:
    names = {"list": "a list", "dict": "an object", "str": "a text", "NoneType": "null"}
    return names.get(type(value).__name__, f"the value {shortened(value)}")


def _split(given: float, published: float, tables: Mapping[str, Table]) -> Split:
    name = split_name("forget", published)
    forget, perturbed = tables[name], tables[f"{name}_perturbed"]
    retain = tables[split_name("retain", 1 - published)]
    check_disjoint(forget, retain)
    check_partition(tables["full"], forget, retain)
    check_parallel(forget, perturbed)
    kept = {(row.question, row.answer) for row in retain.rows}
    evaluated = tables["retain_perturbed"]
    for place, row in zip(evaluated.places, evaluated.rows, strict=True):
        if (row.question, row.answer) not in kept:
            raise DataError(f"{place}: this row is not in {retain.name}, so it is not retained")
    return Split(given, forget.rows, retain.rows, perturbed.rows)
