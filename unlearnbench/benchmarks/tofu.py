"""Load TOFU from a folder of its JSON-lines files or from the hub, and check every row.

Both sources have the same tables (`full`, `forget10`, `retain90`, ...), of which those of the
configured fractions are read. Malformed rows, and tables that do not fit each other, such as a
retain set of another version, are errors with file, line and column. The holdout rows (`holdout10`)
may be missing, as in TOFU's GitHub repository: then there is no membership inference.

Forget and retain rows may have an additional column, `score`, for methods that read it: a number
from 0 (unlearn) to 1 (learn), or a list with one for each token of the answer and its end.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from unlearnbench.api.benchmark import Dataset, Question, Split, split_name
from unlearnbench.benchmarks.authors import pretraining_rows
from unlearnbench.benchmarks.tofu_metrics import TofuSchema
from unlearnbench.config.section import Name
from unlearnbench.errors import DataError, did_you_mean, shortened
from unlearnbench.files import hub

FRACTIONS = (0.01, 0.05, 0.10)
"""Forget fractions that TOFU publishes."""
ROWS_PER_AUTHOR = 20

_FACTS = ("real_authors_perturbed", "world_facts_perturbed")  # three wrong answers, no paraphrase
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Table:
    """Checked rows, and the name of their table in messages."""

    name: str
    rows: tuple[Question, ...]


class TOFU(TofuSchema):
    """Maini et al. 2024, arXiv:2401.06121: 200 fictitious authors of 20 questions each."""

    source: str = "tofu"
    path: Name | None = Field(
        default=None,
        description="folder of its JSON-lines files, whose forget and retain rows may have a "
        "`score`; default: the hub's files",
    )
    hub_id: Name = Field(default="locuslab/TOFU", description="dataset id on the hub")
    revision: Name | None = Field(default=None, description="commit or tag on the hub")

    def split_problem(self, fraction: float) -> str:
        """The fraction is none that TOFU publishes."""
        near = _nearest(fraction)
        if abs(near - fraction) <= 1e-9:
            return ""
        rule = f"TOFU has forget sets of 0.01, 0.05 and 0.10, got {fraction:.10g}"
        return f"{rule}; the nearest is {near:.2f}"

    @property
    def folder(self) -> str | None:
        """Folder of its files, where they are not the hub's."""
        return self.path

    @property
    def repository(self) -> hub.Repository | None:
        """The hub's repository, where rows are read from it."""
        if self.path is not None:
            return None
        return hub.Repository("dataset", self.hub_id, self.revision)

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Load the tables of these forget fractions."""
        published = {fraction: _nearest(fraction) for fraction in fractions}
        names, optional = ["full"], list[str]()
        for fraction in sorted(set(published.values())):
            forget = split_name("forget", fraction)
            names += [forget, split_name("retain", fraction), f"{forget}_perturbed"]
            optional.append(split_name("holdout", fraction))
        names += ["retain_perturbed", *_FACTS]
        folder, origin = _folder(self, *([f"{n}.json" for n in part] for part in (names, optional)))
        names += [name for name in optional if (folder / f"{name}.json").is_file()]
        tables = {name: _table(name, folder, origin) for name in names}
        full = tables["full"].rows
        return Dataset(
            name="tofu",
            full=full,
            splits={given: _split(given, true, tables) for given, true in published.items()},
            facts=(*tables[_FACTS[0]].rows, *tables[_FACTS[1]].rows),
            pretraining=pretraining_rows(self, full),
            subject_rows=ROWS_PER_AUTHOR,
        )


def _nearest(fraction: float) -> float:
    return min(FRACTIONS, key=lambda known: abs(known - fraction))


def _folder(settings: TOFU, files: Sequence[str], optional: Sequence[str]) -> tuple[Path, str]:
    """The folder that has all `files`, the user's or the hub's, and its name in messages."""
    repository = settings.repository
    try:
        if repository is not None:
            folder, origin = hub.snapshot(repository, (*files, *optional)), settings.hub_id
            what = f"{origin}: the hub's data set"
            fix = "name one with TOFU's files in data.hub_id, and the revision that has them"
        else:
            folder = Path(str(settings.path)).expanduser()
            origin, what = str(folder), f"data.path: {folder}"
            fix = "download them from the hub's dataset, or leave data.path out to fetch all"
    except hub.HubError as error:
        raise DataError(
            f"{settings.hub_id}: cannot be read from the hub ({error}); without a network, use a "
            f"folder of TOFU's JSON-lines files: --set data.path=FOLDER"
        ) from error
    if not folder.is_dir():
        raise DataError(f"{what} is not a folder; give the one with TOFU's full.json")
    if missing := [file for file in files if not (folder / file).is_file()]:
        if (folder / f"{missing[0]}l").is_file():
            fix = "it has .jsonl; rename those to .json"
        raise DataError(f"{what} lacks {', '.join(missing)}; {fix}")
    return folder, origin


def _table(name: str, folder: Path, origin: str) -> _Table:
    """Read a file and check its rows."""
    path, shown = folder / f"{name}.json", f"{origin}/{name}.json"
    try:
        objects = [
            _Row(f"{shown}:{number}", _json_object(f"{shown}:{number}", line))
            for number, line in enumerate(path.read_bytes().split(b"\n"), 1)
            if line.strip()
        ]
    except OSError as error:
        raise DataError(f"{shown}: cannot be read ({error.strerror})") from error
    if not objects:
        raise DataError(f"{origin}: {name} has no rows; fetch it again")
    rows = tuple(row.question(name) for row in objects)
    count = len(rows[0].perturbed_answers)
    for row in rows:  # whose losses are an array
        if len(row.perturbed_answers) != count:
            raise DataError(
                f"{row.place}: column 'perturbed_answer' has {len(row.perturbed_answers)} wrong "
                f"answers, and {count} at {rows[0].place}; all rows of a set need equally many"
            )
    return _Table(f"{origin} {name}", rows)


def _json_object(place: str, line: bytes) -> Mapping[str, object]:
    line = line.removeprefix(BOM_UTF8)
    if line.lstrip().startswith(b"["):
        raise DataError(f"{place}: a JSON array; write each row on a line (jq -c '.[]' FILE)")
    try:
        value: object = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{place}:{error.start + 1}: not UTF-8; fetch the file again") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{place}:{error.colno}: not a JSON object on one line ({error.msg}); the file is cut "
            f"off or damaged, fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(f"{place}:1: expected a JSON object, got {_kind(value)}")
    return {str(key): item for key, item in value.items()}


@dataclass(frozen=True)
class _Row:
    """A row before it is checked, and its place."""

    place: str
    """`folder/full.json:12`, or `locuslab/TOFU/full.json:12`."""
    columns: Mapping[str, object]

    def question(self, table: str) -> Question:
        """The row of the table with this name. Raises: DataError for a wrong column."""
        perturbed = table.endswith("_perturbed")
        paraphrased = perturbed and table not in _FACTS
        return Question(
            self._text("question"),
            self._text("answer"),
            paraphrased_answer=self._text("paraphrased_answer") if paraphrased else None,
            perturbed_answers=self._wrong_answers() if perturbed else (),
            paraphrased_question=self._text("paraphrased_question") if paraphrased else None,
            score=None if perturbed or table.startswith("holdout") else self._score(),
            place=self.place,
        )

    def _column(self, column: str) -> object:
        if column not in self.columns:
            near = did_you_mean(column, self.columns)
            raise DataError(
                f"{self.place}: column {column!r} is missing{near}; TOFU has it in this set"
            )
        return self.columns[column]

    def _text(self, column: str) -> str:
        return self._valid_text(repr(column), self._column(column))

    def _wrong_answers(self) -> tuple[str, ...]:
        column = "perturbed_answer"
        value = self._column(column)
        if isinstance(value, str):
            return (self._valid_text(repr(column), value),)
        if not isinstance(value, list):
            raise self._wrong(repr(column), f"must be a list of texts, not {_kind(value)}")
        return self._each(column, value, self._valid_text, "it takes one wrong answer or more")

    def _score(self) -> float | tuple[float, ...] | None:
        value = self.columns.get("score")
        if isinstance(value, list):
            return self._each("score", value, self._valid_score, "give one number, or one a token")
        return None if value is None else self._valid_score("'score'", value)

    def _each(
        self, column: str, items: list[object], check: Callable[[str, object], _T], rule: str
    ) -> tuple[_T, ...]:
        if not items:
            raise self._wrong(repr(column), f"is empty; {rule}")
        return tuple(check(f"{column!r} item {number}", one) for number, one in enumerate(items, 1))

    def _valid_score(self, column: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        rule = "must be a number from 0 (unlearn) to 1 (learn)"
        raise self._wrong(column, f"{rule}, got {shortened(value)}")

    def _valid_text(self, column: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._wrong(column, f"must be a text, not {_kind(value)}")
        if not value.strip():
            raise self._wrong(column, "is blank; every question and answer needs words")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self._wrong(column, "contains half a character (a lone surrogate)")
        return value

    def _wrong(self, column: str, rule: str) -> DataError:
        return DataError(f"{self.place}: column {column} {rule}")


def _kind(value: object) -> str:
    names = {"list": "a list", "dict": "an object", "str": "a text", "NoneType": "null"}
    return names.get(type(value).__name__, f"the value {shortened(value)}")


def _split(given: float, published: float, tables: Mapping[str, _Table]) -> Split:
    name = split_name("forget", published)
    forget, perturbed = tables[name], tables[f"{name}_perturbed"]
    retain, full = tables[split_name("retain", published)], tables["full"]
    _check_disjoint(forget, retain)
    sizes = len(forget.rows), len(retain.rows)
    if sum(sizes) != len(full.rows):
        raise DataError(
            f"{forget.name} has {sizes[0]} rows and {retain.name} {sizes[1]}, together "
            f"{sum(sizes)}, but {full.name} has {len(full.rows)}; a file is cut off or of another "
            f"version"
        )
    known = set(full.rows)
    for row in (*forget.rows, *retain.rows):
        if row not in known:
            raise DataError(
                f"{row.place}: this row is not in {full.name}; use files of one version"
            )
    _check_parallel(forget, perturbed)
    retained = {(row.question, row.answer) for row in retain.rows}
    for row in tables["retain_perturbed"].rows:
        if (row.question, row.answer) not in retained:
            raise DataError(
                f"{row.place}: this row is not in {retain.name}, so it is not a retain row"
            )
    holdout = tables.get(split_name("holdout", published))
    if holdout is not None:
        _check_unseen(holdout, forget, full)
    sets = {
        "retain": tables["retain_perturbed"].rows,
        "forget": perturbed.rows,
        "real_authors": tables[_FACTS[0]].rows,
        "world_facts": tables[_FACTS[1]].rows,
        "holdout": () if holdout is None else holdout.rows,
    }
    return Split(given, forget.rows, retain.rows, sets)


def _check_unseen(holdout: _Table, forget: _Table, full: _Table) -> None:
    """Check that there are as many holdout rows as forget rows, none of them a training row."""
    if len(holdout.rows) != len(forget.rows):
        raise DataError(
            f"{holdout.name} has {len(holdout.rows)} rows, but {forget.name} {len(forget.rows)}; a "
            "file is cut off or of another version"
        )
    seen = {_words(row): row.place for row in full.rows}
    for row in holdout.rows:
        if place := seen.get(_words(row)):
            raise DataError(
                f"{row.place}: the row of {place} again; models are trained on that one, and "
                "holdout rows must be ones that no model has seen, so remove it or the file"
            )


def _words(row: Question) -> tuple[str, str]:
    return " ".join(row.question.split()), " ".join(row.answer.split())


def _check_disjoint(forget: _Table, retain: _Table) -> None:
    """Check that no question is in the forget set twice, or in both sets."""
    first: dict[str, str] = {}
    for row in forget.rows:
        other = first.setdefault(" ".join(row.question.split()), row.place)
        if other != row.place:
            raise DataError(f"{row.place}: the question of {other} again; remove one of the rows")
    for row in retain.rows:
        if other := first.get(" ".join(row.question.split()), ""):
            raise DataError(
                f"{row.place}: its question is in the forget set, at {other}; a question is in one "
                "set, so remove one of the two rows"
            )


def _check_parallel(forget: _Table, perturbed: _Table) -> None:
    """Check that the evaluation rows are the forget rows, in the same order."""
    if len(forget.rows) != len(perturbed.rows):
        raise DataError(
            f"{perturbed.name} has {len(perturbed.rows)} rows, but {forget.name} "
            f"{len(forget.rows)}; a file is cut off or of another version"
        )
    for row, variant in zip(forget.rows, perturbed.rows, strict=True):
        for column in ("question", "answer"):
            if getattr(row, column) != getattr(variant, column):
                raise DataError(
                    f"{variant.place}: column {column!r} differs from that of {row.place}; use "
                    "files of one version"
                )
