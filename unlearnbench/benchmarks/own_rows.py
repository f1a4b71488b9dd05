"""What the declarative benchmarks `questions` and `texts` share: from tables to a data set.

1. `forget` and `retain` name tables, or `rows` names one table whose rows `forget_if` divides.
2. Each table becomes rows (`questions.py`, `texts.py`).
3. Rows are checked across tables: no row is in both, none is there twice.
4. Training rows and evaluation sets are put together, for each split.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from unlearnbench.api.benchmark import (
    Benchmark,
    Dataset,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Reference,
    Split,
    SplitKey,
)
from unlearnbench.api.hyperparameters import TypeName
from unlearnbench.api.metric import Role
from unlearnbench.base.deferred_warnings import warn_once
from unlearnbench.base.errors import DataError, did_you_mean
from unlearnbench.base.hub import Repository
from unlearnbench.base.tables import TableRow
from unlearnbench.benchmarks.own_tables import (
    Filter,
    PythonRows,
    RowFilter,
    Rows,
    RowsBySplit,
    Table,
    TableSection,
    source_of,
)

WHOLE = "all"
"""Name of the only split of one forget request."""
FACTS = "facts"
"""Value of `utility` for the embedded facts."""
MEMORIZED = (
    "extraction_strength_forget",
    "exact_memorization_forget",
    "probability_forget",
    "rouge_forget",
)
"""Columns of what is left of the forget rows, the most telling one first."""
UTILITY = HeadlineMetric("utility", "Utility", "utility")
WITH_RETAIN_MODEL = Headline(
    kept=UTILITY, forgotten=HeadlineMetric("forgotten", "Forgotten", "forgotten")
)
WITHOUT_RETAIN_MODEL = Headline(
    kept=UTILITY, forgotten=HeadlineMetric("removed", "Removed", "removed")
)

TABLE = TypeName("table")
TABLES = TypeName("table | {split: table}")
_OneTable = str | TableSection | PythonRows


RowKey = tuple[Any, ...]


@dataclass
class ReadTable:
    """The rows of a table."""

    label: str
    """Name of the table in messages."""
    rows: tuple[Question, ...]
    note: str = ""
    """Which columns were taken, a line for people."""

    @cached_property
    def keys(self) -> list[RowKey]:
        """What makes rows equal, row by row."""
        return [row_key(row) for row in self.rows]


@dataclass
class _Tables:
    """All tables of a benchmark, read."""

    forget: dict[str, ReadTable] = field(default_factory=dict[str, ReadTable])
    retain: dict[str, ReadTable] = field(default_factory=dict[str, ReadTable])
    """By split; one table stands under each of them."""
    holdout: dict[str, ReadTable] = field(default_factory=dict[str, ReadTable])
    notes: list[str] = field(default_factory=list[str])


class OwnRows(Benchmark):
    """Base of benchmarks whose rows are in tables of the user's own."""

    # The names of a method's keys mean nothing else in the section of a benchmark.
    reserved: ClassVar[tuple[str, ...]] = ()
    headline: ClassVar[Headline] = WITH_RETAIN_MODEL
    references: ClassVar[frozenset[Reference]] = frozenset({"start", "retain"})
    splits: ClassVar[tuple[str, ...]] = (WHOLE,)
    needs_base: ClassVar[bool] = False
    default_profile: ClassVar[str] = "unlearnbench"

    forget: Annotated[RowsBySplit | None, TABLES] = Field(
        default="forget.jsonl",
        description="rows to forget: a file (.jsonl, .json, .csv, .tsv, .parquet, .arrow, .txt), a "
        "folder, or an id on the hub (org/name:config[split]@revision, or a section with path, "
        "config, split and revision)",
    )
    retain: Annotated[RowsBySplit | None, TABLES] = Field(
        default="retain.jsonl",
        description="rows to keep, in the same forms as `forget`; either for all splits, or by "
        "split",
    )
    rows: Annotated[Rows | None, TABLE] = Field(
        default=None,
        description="one table with all rows, instead of `forget` and `retain`; `forget_if` "
        "divides it",
    )
    forget_if: Annotated[Filter | None, TypeName("{column: value or values}")] = Field(
        default=None,
        description="condition for the rows in `rows` that are to be forgotten, such as {author: "
        '"J. Doe"}; a row must match all keys, and one of the values if a key has a '
        "list",
    )
    holdout: Annotated[RowsBySplit | None, TABLES] = Field(
        default=None,
        description="rows like the forget rows that no model has seen; the score Private needs "
        "them",
    )
    utility: Annotated[Rows | None, TABLE] = Field(
        default=FACTS,
        description="rows about other things, which show whether general knowledge is kept; "
        "`facts`: built-in true facts; null: none",
    )
    subject: str | None = Field(
        default=None,
        description="column that says what a row is about, because attacks train on some "
        "subjects and measure others; default: each row is its own subject",
    )
    evaluated_rows: int = Field(
        default=400,
        ge=1,
        description="maximal number of retain rows that are evaluated, and of utility rows; they "
        "are evenly spaced",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_defaults_of_other_ways(cls, values: Any) -> Any:
        """Leave `forget` and `retain` out if one table with marked rows is named."""
        if isinstance(values, Mapping) and values.get("rows") is not None:
            return {"forget": None, "retain": None, **values}
        return values

    @model_validator(mode="after")
    def _names_rows_in_one_way(self) -> Self:
        if self.rows is not None and (self.forget is not None or self.retain is not None):
            raise ValueError(
                "rows stands for forget and retain together; leave those two out (null, where "
                "another file has them)"
            )
        if self.rows is not None and not self.forget_if:
            raise ValueError(
                "rows needs forget_if, which says which of the rows are to be forgotten, such as "
                'forget_if: {author: "J. Doe"}'
            )
        if self.rows is None and self.forget_if is not None:
            raise ValueError("forget_if divides the table of rows; name it in rows")
        if self.rows is None and (self.forget is None or self.retain is None):
            raise ValueError("name rows in forget and in retain, or one table in rows")
        for setting in ("retain", "holdout"):
            value = getattr(self, setting)
            if not isinstance(value, Mapping):
                continue
            unknown = [name for name in value if name not in self.split_names]
            missing = [name for name in self.split_names if name not in value]
            if unknown:
                near = did_you_mean(unknown[0], self.split_names)
                raise ValueError(
                    f"{setting}: {unknown[0]!r} is no split{near or ';'} the splits are those of "
                    f"forget: {', '.join(self.split_names)}"
                )
            if missing:
                raise ValueError(f"{setting}: no rows for split {missing[0]}; name them, too")
        return self

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits: `all`, or the keys of `forget`."""
        return tuple(self.forget) if isinstance(self.forget, Mapping) else (WHOLE,)

    @property
    def set_roles(self) -> Mapping[str, Role]:
        """The evaluation sets that have rows, and what each is for."""
        left_out: set[str] = set()
        if self.holdout is None:
            left_out.add("holdout")
        if self.utility is None:
            left_out.add("utility")
        return {name: role for name, role in type(self).roles.items() if name not in left_out}

    def headline_with(self, references: frozenset[Reference]) -> Headline:
        """The two numbers that methods are ranked by, by the models that exist."""
        return WITH_RETAIN_MODEL if "retain" in references else WITHOUT_RETAIN_MODEL

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """The hub's repositories that rows are read from, by the setting that names them."""
        found: dict[str, Repository] = {}
        for setting, rows in self._named_tables():
            if isinstance(rows, PythonRows):
                continue
            repository = source_of(rows).repository
            if repository is not None:
                found[setting] = repository
        return found

    def _named_tables(self) -> Iterator[tuple[str, _OneTable]]:
        """Yield all tables, each with the setting that names it: `forget`, `retain.books`."""
        for setting in ("rows", "forget", "retain", "holdout", "utility"):
            value: Any = getattr(self, setting)
            if value is None or (setting == "utility" and value == FACTS):
                continue
            if isinstance(value, Mapping):
                by_split = cast("Mapping[str, _OneTable]", value)
                yield from ((f"{setting}.{split}", rows) for split, rows in by_split.items())
            else:
                yield setting, value

    @abstractmethod
    def read_rows(
        self,
        table: Table,
        part: Literal["forget", "retain", "holdout", "utility"],
        rows: Iterable[TableRow] | None = None,
    ) -> ReadTable:
        """Make rows of a table.

        Args:
            table: The table.
            part: What its rows are for.
            rows: Those of the table that are asked for. Defaults to all.
        """

    @abstractmethod
    def columns_as_text(self, table: Table) -> Sequence[str]:
        """Return the columns of a table that are read as text."""

    @abstractmethod
    def evaluation_sets(self, split: OwnSplit) -> Mapping[str, tuple[Question, ...]]:
        """Return the evaluation sets of a split, without `utility`."""

    @abstractmethod
    def evaluated_facts(self) -> tuple[Question, ...]:
        """Return the embedded facts as rows of a multiple choice."""

    @abstractmethod
    def trained_facts(self) -> tuple[Question, ...]:
        """Return the embedded facts as rows that a tiny base model is trained on."""

    @abstractmethod
    def evaluated_utility(self, rows: Sequence[Question]) -> tuple[Question, ...]:
        """Return utility rows of the user's own as they are evaluated."""

    @property
    def uses_facts(self) -> bool:
        """Whether the utility rows are the embedded facts."""
        return self.utility == FACTS

    def shared_metrics(self) -> tuple[MetricUse, ...]:
        """Return the summaries that both benchmarks name, in the order of a table."""
        kept = ["probability_retain", "rouge_retain"]
        if self.utility is not None:
            kept.append("probability_utility")
            # Options are scored, and nothing is generated that ROUGE could read.
            kept += [] if self.uses_facts else ["rouge_utility"]
        return (
            MetricUse("utility", settings={"of": tuple(kept)}),
            MetricUse("forgotten", settings={"of": MEMORIZED}),
            MetricUse("removed", settings={"of": MEMORIZED}, unless="retain"),
            MetricUse("kept", settings={"of": ("utility", "repetition_forget")}),
        )

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read all tables. What one split forgets, the others retain, unless `retain` is by split.

        All tables are read whichever splits are asked for, so that a split's rows do not depend on
        the other splits of a sweep.
        """
        tables = self._read_tables()
        utility = self._read_utility(tables)
        is_one = len(self.split_names) == 1
        # Most requests are one, of many rows that need not be compared then.
        pooled = () if is_one else _pooled(table.rows for table in tables.forget.values())
        parts: dict[SplitKey, Split] = {}
        whole: list[Sequence[Question]] = []
        for name in self.split_names:
            forget = tables.forget[name].rows
            retain = tables.retain[name].rows
            if not isinstance(self.retain, Mapping):
                retain = (*retain, *_without(pooled, forget))
            whole.append((*retain, *forget))
            if name not in splits:
                continue
            holdout = tables.holdout[name].rows if tables.holdout else ()
            _check_apart(tables, name, utility)
            own = OwnSplit(forget, retain, spaced(retain, self.evaluated_rows), holdout)
            sets = {**self.evaluation_sets(own)}
            if utility is not None:
                sets["utility"] = utility.rows
            # In the order of a table.
            ordered = {key: sets[key] for key in self.set_roles}
            parts[name] = Split(name, forget, retain, ordered)
        return Dataset(
            name=self.source,
            full=tuple(whole[0]) if is_one else _pooled(whole),
            splits=parts,
            facts=self.trained_facts(),
            notes=tuple(tables.notes),
        )

    def _read_tables(self) -> _Tables:
        tables = _Tables()
        if self.rows is not None:
            self._read_marked(tables, self.rows)
        else:
            tables.forget = self._read_by_split("forget", self.forget, tables.notes)
            tables.retain = self._read_by_split("retain", self.retain, tables.notes)
        if self.holdout is not None:
            tables.holdout = self._read_by_split("holdout", self.holdout, tables.notes)
        else:
            tables.notes.append(
                "data.holdout: no rows, so whether what is left is private is not measured; name "
                "rows like the forget rows that no model has seen"
            )
        return tables

    def _read_by_split(
        self, part: Literal["forget", "retain", "holdout"], named: Any, notes: list[str]
    ) -> dict[str, ReadTable]:
        if isinstance(named, Mapping):
            by_split = cast("Mapping[str, _OneTable]", named)
            return {
                split: self._read_one(part, rows, f"data.{part}.{split}", notes)
                for split, rows in by_split.items()
            }
        table = self._read_one(part, named, f"data.{part}", notes)
        return dict.fromkeys(self.split_names, table)

    def _read_one(
        self,
        part: Literal["forget", "retain", "holdout", "utility"],
        rows: _OneTable,
        setting: str,
        notes: list[str],
    ) -> ReadTable:
        read = self.read_rows(Table(rows, setting), part)
        if not read.rows:
            raise DataError(f"{setting}: {read.label} has no rows; name a table with rows")
        notes.append(
            f"{setting}: {counted(len(read.rows), 'row', 'rows')} of {read.label}, {read.note}"
        )
        _warn_of_duplicates(read)
        return read

    def _read_marked(self, tables: _Tables, named: _OneTable) -> None:
        """Divide one table with marked rows."""
        table = Table(named, "data.rows")
        row_filter = RowFilter.of(self.forget_if or {})
        rows = list(table.read(self.columns_as_text(table)))
        marked = list(zip(rows, row_filter.matches(table, rows), strict=True))
        forget = self.read_rows(table, "forget", [row for row, is_marked in marked if is_marked])
        retain = self.read_rows(
            table, "retain", [row for row, is_marked in marked if not is_marked]
        )
        tables.forget[WHOLE] = forget
        tables.retain[WHOLE] = retain
        for read in (forget, retain):
            _warn_of_duplicates(read)
        tables.notes.append(
            f"data.rows: {counted(len(forget.rows), 'row', 'rows')} of {table.label} to forget and "
            f"{len(retain.rows)} to retain, {forget.note}"
        )

    def _read_utility(self, tables: _Tables) -> ReadTable | None:
        if self.utility is None:
            return None
        if self.utility == FACTS:
            rows = self.evaluated_facts()
            tables.notes.append(f"data.utility: {len(rows)} embedded facts, as a multiple choice")
            return ReadTable("the embedded facts", rows)
        read = self._read_one("utility", self.utility, "data.utility", tables.notes)
        evaluated = self.evaluated_utility(spaced(read.rows, self.evaluated_rows))
        return ReadTable(read.label, evaluated, read.note)


@dataclass(frozen=True)
class OwnSplit:
    """The rows of one split."""

    forget: tuple[Question, ...]
    retain: tuple[Question, ...]
    evaluated_retain: tuple[Question, ...]
    """Those of the retain rows that are evaluated."""
    holdout: tuple[Question, ...]


def spaced(rows: Sequence[Question], most: int) -> tuple[Question, ...]:
    """Return at most so many rows, evenly spaced, because tables are often sorted by a subject."""
    if len(rows) <= most:
        return tuple(rows)
    return tuple(rows[i * len(rows) // most] for i in range(most))


def row_key(row: Question) -> RowKey:
    """Return what makes two rows equal: all texts that a model reads, without extra blanks."""
    examples = tuple((_plain(question), _plain(answer)) for question, answer in row.examples)
    return _plain(row.question), _plain(row.answer), examples, _plain(row.system or "")


def _plain(text: str) -> str:
    return " ".join(text.split())


def _pooled(parts: Iterable[Sequence[Question]]) -> tuple[Question, ...]:
    """Return the rows of all parts, each as often as the part that has it most often."""
    pooled: list[Question] = []
    counts = Counter[RowKey]()
    for part in parts:
        counts_here = Counter[RowKey]()
        for row in part:
            key = row_key(row)
            counts_here[key] += 1
            if counts_here[key] > counts[key]:
                counts[key] += 1
                pooled.append(row)
    return tuple(pooled)


def _without(rows: Iterable[Question], others: Iterable[Question]) -> tuple[Question, ...]:
    """Return the rows that are none of the others."""
    excluded = {row_key(row) for row in others}
    return tuple(row for row in rows if row_key(row) not in excluded)


def _warn_of_duplicates(table: ReadTable) -> None:
    first: dict[RowKey, Question] = {}
    again: list[tuple[Question, Question]] = []
    for key, row in zip(table.keys, table.rows, strict=True):
        if key in first:
            again.append((first[key], row))
        else:
            first[key] = row
    if again:
        one, other = again[0]
        count = counted(len(again), "row is", "rows are")
        warn_once(
            f"{table.label}: {count} there more than once, such as {one.place} and {other.place}; "
            "each counts as often as it is there, so remove the others if that is not meant"
        )


def _check_apart(tables: _Tables, split: str, utility: ReadTable | None) -> None:
    """Raise DataError for rows that are in two tables of which only one may have them."""
    forget, retain = tables.forget[split], tables.retain[split]
    fix = "a row is forgotten or retained, never both: remove these rows from one of the two"
    _check_pair(forget, retain, "forget and retain", fix)
    if utility is not None:
        fix = "a row to be forgotten cannot be kept: remove one of the two"
        _check_pair(forget, utility, "forget and utility", fix)
    if tables.holdout:
        fix = "no model may have seen a holdout row: remove these rows from holdout"
        for part, trained in (("forget", forget), ("retain", retain)):
            _check_pair(trained, tables.holdout[split], f"{part} and holdout", fix)


def _check_pair(one: ReadTable, other: ReadTable, parts: str, fix: str) -> None:
    """Raise DataError for rows that both tables have.

    Args:
        one: A table.
        other: Another one, or the same table for another part.
        parts: What the tables are for, in words.
        fix: What to do, for the message.
    """
    first: dict[RowKey, Question] = {}
    for key, row in zip(one.keys, one.rows, strict=True):
        first.setdefault(key, row)
    pairs = zip(other.keys, other.rows, strict=True)
    shared = [(first[key], row) for key, row in pairs if key in first]
    if shared:
        row, again = shared[0]
        count = counted(len(shared), "row of", "rows of")
        are = "is" if len(shared) == 1 else "are"
        example = again.place
        if row.place != again.place:
            example += f", which is {row.place}"
        # One file may be named for both parts, or be one table with marked rows.
        where = f"in {one.label} as well" if one.label != other.label else f"in both {parts}"
        raise DataError(f"{count} {other.label} {are} {where}, such as {example}; {fix}")


def counted(count: int, one: str, several: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`."""
    return f"{count} {one if count == 1 else several}"
