"""Rows of the user's own on the command line.

Two tables have the rows: `--forget-rows` and `--retain-rows`. Or one table has all rows (the
*marked table*), and `--forget-if COLUMN=VALUE` says which of them are to be forgotten.

The tables are of any form that the benchmarks `questions` and `texts` read: a file, a folder, or a
data set of the hub. The columns decide which of the two benchmarks it is. Columns with usual names
are found, and `--column` names others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from unlearnbench.base.errors import DataError, did_you_mean
from unlearnbench.cli.command import option

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Benchmark
    from unlearnbench.benchmarks.own_tables import Table
    from unlearnbench.benchmarks.row_filter import Filter

ALL = "all"
"""The only split of rows that are given on the command line."""
OPTIONAL = ("paraphrase", "wrong_answers", "subject", "score")
"""Columns that a benchmark reads only if they are named."""
_MARKED_ROWS = "One table with all rows, which --forget-if divides."


@dataclass(frozen=True)
class RowOptions:
    """Options that name tables of one's own."""

    marked_option: ClassVar[str] = "--marked-rows"
    """Option that names a marked table. The commands that evaluate a model have another `--rows`:
    the number of rows that are evaluated."""

    forget_rows: Annotated[
        str | None,
        option(
            "ROWS", "Rows to forget: file, folder of save_to_disk, or hub id (org/name[split])."
        ),
    ] = None
    retain_rows: Annotated[str | None, option("ROWS", "Rows to keep, in the same forms.")] = None
    marked_rows: Annotated[str | None, option("ROWS", _MARKED_ROWS)] = None
    forget_if: Annotated[
        list[str] | None,
        option(
            "COLUMN=VALUE",
            "Rows of that table to forget (repeatable: any value of a column, all columns).",
        ),
    ] = None
    holdout_rows: Annotated[
        str | None,
        option("ROWS", "Rows like those to forget that no model has seen, for Private."),
    ] = None
    column: Annotated[
        list[str] | None,
        option(
            "SETTING=NAME",
            "Column of question, answer, messages or text (repeatable).",
            default="found by usual names",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any of the options is there."""
        return any(value for value in vars(self).values())

    def benchmark(self) -> Benchmark:
        """Return the benchmark with these rows.

        Raises:
            DataError: If a table or column is missing.
        """
        from unlearnbench.config.entries import benchmark_of

        return benchmark_of(OwnTables.of(self).section())

    def named_columns(self) -> dict[str, str]:
        """Return the columns of `--column` by setting.

        Raises:
            DataError: If there is no such setting.
        """
        from unlearnbench.benchmarks.own_columns import USUAL_NAMES

        columns: dict[str, str] = {}
        for text in self.column or ():
            setting, equals, name = text.partition("=")
            if not equals or not name or setting not in USUAL_NAMES:
                near = did_you_mean(setting, USUAL_NAMES)
                raise DataError(
                    f"--column {text}: expected SETTING=NAME with a setting of "
                    f"{', '.join(USUAL_NAMES)}{near}"
                )
            columns[setting] = name
        return columns

    def wanted_values(self) -> dict[str, list[str]]:
        """Return the values of `--forget-if` by column, as they were typed.

        Raises:
            DataError: If a column or a value is missing.
        """
        wanted: dict[str, list[str]] = {}
        for text in self.forget_if or ():
            # A value may contain "=", as addresses and formulas do.
            column, _, value = text.partition("=")
            if not column or not value:
                why = "; an empty cell never matches" if column and "=" in text else ""
                raise DataError(
                    f"--forget-if {text}: expected COLUMN=VALUE, such as "
                    f"--forget-if 'author=J. Doe'{why}"
                )
            wanted.setdefault(column, []).append(value)
        return wanted

    def check_tables(self) -> None:
        """Check that rows are named in one of the two ways.

        Raises:
            DataError: If a table is missing, or both ways are mixed.
        """
        marked = self.marked_option
        pair = {"--forget-rows": self.forget_rows, "--retain-rows": self.retain_rows}
        given = [name for name, place in pair.items() if place is not None]
        if self.marked_rows is not None:
            if given:
                raise DataError(
                    f"{marked}: it names one table with all rows, and {' and '.join(given)} "
                    "tables of their own; leave out the one or the others"
                )
            if not self.forget_if:
                raise DataError(
                    f"{marked}: --forget-if COLUMN=VALUE is needed, too; it says which rows of "
                    "the table are to be forgotten"
                )
            return
        if self.forget_if:
            fix = f"leave it out, or name one table with all rows in {marked}"
            if not given:
                fix = f"name the table in {marked}"
            raise DataError(f"--forget-if: it divides one table with all rows; {fix}")
        if len(given) < len(pair):
            missing = next(name for name in reversed(pair) if name not in given)
            raise DataError(
                f"{missing}: rows to forget and rows to keep are needed, both; name a file, "
                f"a folder or a hub id, or one table with all rows in {marked}"
            )


@dataclass(frozen=True)
class NewRowOptions(RowOptions):
    """The same options of `configs new`, where a marked table is named as in YAML."""

    marked_option: ClassVar[str] = "--rows"

    marked_rows: Annotated[str | None, option("ROWS", _MARKED_ROWS, "--rows")] = None


@dataclass(frozen=True)
class OwnTables:
    """Tables of one's own, what they have in them, and where."""

    source: str
    """The benchmark that reads them: `questions` or `texts`."""
    tables: Mapping[str, str]
    """As they were named, by `forget` and `retain`, or `rows`, and `holdout`."""
    forget_if: Filter
    """Which rows of a marked table are to be forgotten. Empty if there are two tables."""
    columns: Mapping[str, str]
    """Columns by setting that all tables have. Empty if the tables' columns differ."""
    named: Mapping[str, str]
    """Those of them that the user has named."""
    optional: Mapping[str, str]
    """Further columns with usual names, by setting."""

    @classmethod
    def of(cls, options: RowOptions) -> OwnTables:
        """Read the heads of the tables.

        Raises:
            DataError: If a table is missing or has no suitable columns.
        """
        from unlearnbench.benchmarks.own_tables import Table

        named = options.named_columns()
        wanted = options.wanted_values()
        options.check_tables()
        places = {
            "forget": (options.forget_rows, "--forget-rows"),
            "retain": (options.retain_rows, "--retain-rows"),
            "rows": (options.marked_rows, options.marked_option),
            "holdout": (options.holdout_rows, "--holdout-rows"),
        }
        tables: dict[str, str] = {}
        read: dict[str, Table] = {}
        for name, (place, option_name) in places.items():
            if place is not None:
                tables[name] = place
                read[name] = Table(place, option_name)
        heads = {name: table.columns for name, table in read.items()}
        kind, found = _found(tables, heads, named)
        first = next(iter(found.values()))
        in_all = first if all(columns == first for columns in found.values()) else {}
        optional = dict(_optional(heads, {*named, *in_all.values()}))
        forget_if: Filter = {}
        if "rows" in read:
            forget_if = _filter_of(wanted, read["rows"])
        return cls(kind, tables, forget_if, in_all, named, optional)

    def section(self) -> dict[str, Any]:
        """Return the section `data` of a configuration, with what the user has named."""
        section: dict[str, Any] = {"source": self.source}
        for name, place in self.tables.items():
            section[name] = place
            if name == "rows":
                section["forget_if"] = self.forget_if
        return {**section, **self.named}


def _filter_of(wanted: Mapping[str, Sequence[str]], table: Table) -> Filter:
    """Return the section `forget_if`, with values of the types that the cells have.

    Args:
        wanted: Values as they were typed, by column.
        table: The marked table.

    Raises:
        DataError: If a column is missing, a value is in no row, or no row is left on one side.
    """
    from unlearnbench.benchmarks.row_filter import RowFilter, typed_values

    rows = list(table.read(()))
    forget_if: Filter = {}
    for column, texts in wanted.items():
        cells = [row.values.get(column) for row in rows]
        values = tuple(value for text in texts for value in typed_values(text, cells))
        forget_if[column] = values[0] if len(values) == 1 else values
    RowFilter.of(forget_if, "--forget-if").matches(table, rows)
    return forget_if


def _found(
    tables: Mapping[str, str], heads: Mapping[str, Sequence[str]], named: Mapping[str, str]
) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the kind of benchmark, and the columns of each table by setting."""
    from unlearnbench.benchmarks.own_columns import answer_columns, text_column

    columns: dict[str, dict[str, str]] = {}
    kind = _kind(next(iter(heads.values())), named)
    try:
        for name, place in tables.items():
            if kind == "texts":
                columns[name] = {"text": text_column(named.get("text"), heads[name], place)}
            else:
                columns[name] = answer_columns(named, heads[name], place)
    except DataError as error:
        if named:
            raise
        how = (
            "--column text=NAME"
            if kind == "texts"
            else "--column question=NAME --column answer=NAME"
        )
        raise DataError(f"{error}; on the command line: {how}") from None
    return kind, columns


def _kind(columns: Sequence[str], named: Mapping[str, str]) -> str:
    """Return whether a table has questions with answers, or texts."""
    from unlearnbench.benchmarks.own_columns import usual_columns

    if "text" in named:
        return "texts"
    if named.keys() & {"question", "answer", "messages"} or usual_columns("messages", columns):
        return "questions"
    has_pair = all(usual_columns(setting, columns) for setting in ("question", "answer"))
    has_text = usual_columns("text", columns) or len(columns) == 1
    return "texts" if has_text and not has_pair else "questions"


def _optional(heads: Mapping[str, Sequence[str]], used: set[str]) -> Iterator[tuple[str, str]]:
    """Yield settings of optional columns that the tables have under one usual name."""
    from unlearnbench.benchmarks.own_columns import usual_columns

    for setting in OPTIONAL:
        if setting in used:
            continue
        # Subjects are only read of the rows to forget.
        read = ["rows"]
        if "rows" not in heads:
            read = ["forget"] if setting == "subject" else ["forget", "retain"]
        found = {usual_columns(setting, heads[name]) for name in read}
        if len(found) == 1:
            (columns,) = found
            if len(columns) == 1 and columns[0] not in used:
                yield setting, columns[0]
