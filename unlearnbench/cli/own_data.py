"""Rows of the user's own on the command line: `--forget-rows` and `--retain-rows`.

The tables are of any form that the benchmarks `questions` and `texts` read: a file, a folder, or a
data set of the hub. The columns decide which of the two benchmarks it is. Columns with usual names
are found, and `--column` names others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.errors import DataError, did_you_mean
from unlearnbench.cli.command import option

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Benchmark

ALL = "all"
"""The only split of rows that are given on the command line."""
OPTIONAL = ("paraphrase", "wrong_answers", "subject", "score")
"""Columns that a benchmark reads only if they are named."""


@dataclass(frozen=True)
class RowOptions:
    """Options that name tables of one's own."""

    forget_rows: Annotated[
        str | None,
        option(
            "ROWS", "Rows to forget: file, folder of save_to_disk, or hub id (org/name[split])."
        ),
    ] = None
    retain_rows: Annotated[str | None, option("ROWS", "Rows to keep, likewise.")] = None
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


@dataclass(frozen=True)
class OwnTables:
    """Tables of one's own, what they have in them, and where."""

    source: str
    """The benchmark that reads them: `questions` or `texts`."""
    tables: Mapping[str, str]
    """As they were named, by `forget`, `retain` and `holdout`."""
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
        if options.forget_rows is None or options.retain_rows is None:
            missing = "retain" if options.retain_rows is None else "forget"
            raise DataError(
                f"--{missing}-rows: rows to forget and rows to keep are needed, both; name a file, "
                "a folder or a hub id"
            )
        places = {
            "forget": options.forget_rows,
            "retain": options.retain_rows,
            "holdout": options.holdout_rows,
        }
        tables = {name: place for name, place in places.items() if place is not None}
        heads = {name: Table(place, f"--{name}-rows").columns for name, place in tables.items()}
        kind, found = _found(tables, heads, named)
        in_all = (
            found["forget"] if len({tuple(each.items()) for each in found.values()}) == 1 else {}
        )
        optional = dict(_optional(heads, {*named, *in_all.values()}))
        return cls(kind, tables, in_all, named, optional)

    def section(self) -> dict[str, Any]:
        """Return the section `data` of a configuration, with what the user has named."""
        return {"source": self.source, **self.tables, **self.named}


def _found(
    tables: Mapping[str, str], heads: Mapping[str, Sequence[str]], named: Mapping[str, str]
) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the kind of benchmark, and the columns of each table by setting."""
    from unlearnbench.benchmarks.own_columns import answer_columns, text_column

    columns: dict[str, dict[str, str]] = {}
    kind = _kind(heads["forget"], named)
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
        read = ["forget"] if setting == "subject" else ["forget", "retain"]
        found = {usual_columns(setting, heads[name]) for name in read}
        if len(found) == 1:
            (columns,) = found
            if len(columns) == 1 and columns[0] not in used:
                yield setting, columns[0]
