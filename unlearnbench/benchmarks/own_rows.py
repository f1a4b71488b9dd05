"""What the declarative benchmarks `questions` and `texts` share: from tables to a data set.

1. `forget` and `retain` name tables, or `rows` names one table whose rows `forget_if` divides.
2. Each table becomes rows (`questions.py`, `texts.py`).
3. Rows are checked across tables (`read_tables.py`): no row is both forgotten and retained, and
   duplicates are reported.
4. Training rows and evaluation sets are put together, for each split.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from unlearnbench.base.errors import DataError, did_you_mean
from unlearnbench.base.hub import Repository
from unlearnbench.base.tables import TableRow
from unlearnbench.benchmarks.own_tables import (
    PythonRows,
    Rows,
    RowsBySplit,
    Table,
    TableSection,
    source_of,
)
from unlearnbench.benchmarks.read_tables import (
    ReadTable,
    ReadTables,
    check_apart,
    counted,
    pooled,
    spaced,
    warn_of_duplicates,
    without,
)
from unlearnbench.benchmarks.row_filter import Filter, RowFilter

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
"""Columns that say how much of the forget rows is left, the most telling one first."""
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

Part = Literal["forget", "retain", "holdout", "utility"]
"""What the rows of a table are for."""


@dataclass(frozen=True)
class OwnSplit:
    """The rows of one split."""

    forget: tuple[Question, ...]
    retain: tuple[Question, ...]
    evaluated_retain: tuple[Question, ...]
    """The retain rows that are evaluated."""
    holdout: tuple[Question, ...]


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
        part: Part,
        rows: Iterable[TableRow] | None = None,
    ) -> ReadTable:
        """Make rows of a table.

        Args:
            table: The table.
            part: What its rows are for.
            rows: Rows of the table to make. Defaults to all of them.
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
            # The options of facts are scored, and no text is generated that ROUGE could read.
            if not self.uses_facts:
                kept.append("rouge_utility")
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
        utility = self._read_utility(tables.notes)
        has_one_split = len(self.split_names) == 1
        # One split has nothing to pool, and may have so many rows that comparing them takes long.
        all_forget: tuple[Question, ...] = ()
        if not has_one_split:
            all_forget = pooled(table.rows for table in tables.forget.values())
        loaded: dict[SplitKey, Split] = {}
        rows_of_splits: list[Sequence[Question]] = []
        for name in self.split_names:
            forget = tables.forget[name].rows
            retain = tables.retain[name].rows
            if not isinstance(self.retain, Mapping):
                retain = (*retain, *without(all_forget, forget))
            rows_of_splits.append((*retain, *forget))
            if name not in splits:
                continue
            check_apart(tables, name, utility)
            holdout = tables.holdout[name].rows if tables.holdout else ()
            rows = OwnSplit(forget, retain, spaced(retain, self.evaluated_rows), holdout)
            loaded[name] = Split(name, forget, retain, self._sets(rows, utility))
        return Dataset(
            name=self.source,
            full=tuple(rows_of_splits[0]) if has_one_split else pooled(rows_of_splits),
            splits=loaded,
            facts=self.trained_facts(),
            notes=tuple(tables.notes),
        )

    def _sets(self, rows: OwnSplit, utility: ReadTable | None) -> dict[str, tuple[Question, ...]]:
        """Return all evaluation sets of a split, in the order of a table's columns."""
        sets = {**self.evaluation_sets(rows)}
        if utility is not None:
            sets["utility"] = utility.rows
        return {name: sets[name] for name in self.set_roles}

    def _read_tables(self) -> ReadTables:
        """Read the tables of forget, retain and holdout rows."""
        tables = ReadTables()
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

    def _read_by_split(self, part: Part, named: Any, notes: list[str]) -> dict[str, ReadTable]:
        """Read the tables of one part, by split.

        Args:
            part: What the rows are for.
            named: A table for all splits, or tables by split.
            notes: Gets a line on each table.
        """
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
        part: Part,
        rows: _OneTable,
        setting: str,
        notes: list[str],
    ) -> ReadTable:
        """Read one table, whose rows are named by a setting such as `data.forget`.

        Raises:
            DataError: The table has no rows.
        """
        read = self.read_rows(Table(rows, setting), part)
        if not read.rows:
            raise DataError(f"{setting}: {read.label} has no rows; name a table with rows")
        notes.append(
            f"{setting}: {counted(len(read.rows), 'row', 'rows')} of {read.label}, {read.note}"
        )
        warn_of_duplicates(read)
        return read

    def _read_marked(self, tables: ReadTables, named: _OneTable) -> None:
        """Divide one table with marked rows into forget and retain rows."""
        table = Table(named, "data.rows")
        row_filter = RowFilter.of(self.forget_if or {})
        rows = list(table.read(self.columns_as_text(table)))
        rows_to_forget: list[TableRow] = []
        rows_to_retain: list[TableRow] = []
        for row, is_marked in zip(rows, row_filter.matches(table, rows), strict=True):
            if is_marked:
                rows_to_forget.append(row)
            else:
                rows_to_retain.append(row)
        forget = self.read_rows(table, "forget", rows_to_forget)
        retain = self.read_rows(table, "retain", rows_to_retain)
        tables.forget[WHOLE] = forget
        tables.retain[WHOLE] = retain
        warn_of_duplicates(forget)
        warn_of_duplicates(retain)
        tables.notes.append(
            f"data.rows: {counted(len(forget.rows), 'row', 'rows')} of {table.label} to forget and "
            f"{len(retain.rows)} to retain, {forget.note}"
        )

    def _read_utility(self, notes: list[str]) -> ReadTable | None:
        """Read the utility rows as they are evaluated; None if there are none."""
        if self.utility is None:
            return None
        if self.utility == FACTS:
            rows = self.evaluated_facts()
            notes.append(f"data.utility: {len(rows)} embedded facts, as a multiple choice")
            return ReadTable("the embedded facts", rows)
        read = self._read_one("utility", self.utility, "data.utility", notes)
        evaluated = self.evaluated_utility(spaced(read.rows, self.evaluated_rows))
        return ReadTable(read.label, evaluated, read.note)
