"""Tables of published benchmarks: files of a folder, or of a repository on the hub.

A benchmark names a table by its split and configuration on the hub, as in
`Table("forget_qa", "knowmem")`. The same names lead to its file, in a folder of the user as well as
in the repository:

1. `knowmem.jsonl`, `forget_qa/knowmem.jsonl` or `knowmem/forget_qa.jsonl`: JSON lines
2. `knowmem/forget_qa-*.parquet`: the layout of most data sets on the hub
3. if a repository has neither: the files that its card names for the configuration and the split

Each row is checked against a model of its columns. A fault is one line with file, row and column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.base.messages import describe_error
from unlearnbench.base.tables import TableSource, read_table

DEFAULT_CONFIG = "data"
"""Folder of the tables of a repository that has only one configuration."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank; every question and answer needs words")
    return text


Words = Annotated[str, AfterValidator(_not_blank)]
"""A text that is not blank."""


class Columns(BaseModel):
    """Columns of a row. Other columns are ignored."""

    model_config = ConfigDict(strict=True)


C = TypeVar("C", bound=Columns)
PlacedRow = tuple[str, C]
"""Place of a row, such as `forget.jsonl:12`, and the row."""


@dataclass(frozen=True)
class Table:
    """A table of a benchmark."""

    split: str
    """Split on the hub: `test`."""
    config: str | None = None
    """Configuration on the hub: `wmdp-bio`. None if there is only one."""
    file: str | None = None
    """Its file, if the two names do not lead to it: `All/passage.json`."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of its files in a folder. The files of the first one that matches are read."""
        if self.file is not None:
            return (self.file,)
        config = self.config or DEFAULT_CONFIG
        patterns = [
            f"{config}.jsonl",
            f"{self.split}/{config}.jsonl",
            f"{config}/{self.split}.jsonl",
            f"{config}/{self.split}-*.parquet",
        ]
        if self.config is None:
            patterns.insert(0, f"{self.split}.jsonl")
        return tuple(patterns)

    @property
    def label(self) -> str:
        """Name in messages: `wmdp-bio, split test`."""
        split = f"split {self.split}"
        return split if not self.config else f"{self.config}, {split}"


@dataclass(frozen=True)
class Tables:
    """The tables of one place, on this machine."""

    folder: Path
    """Folder of the files: the user's, or that of the repository in the hub's cache."""
    origin: str
    """Folder or hub id, as messages name it."""
    repository: hub.Repository | None = None
    """None if the folder is the user's."""

    def files(self, table: Table) -> list[Path]:
        """Return the files of a table in the order of their rows; none if there are none."""
        for pattern in table.patterns:
            files = sorted(self.folder.glob(pattern))
            if files:
                return files
        return []

    def require(self, tables: Iterable[Table], fix: str) -> None:
        """Check that a folder has all of these tables.

        Args:
            tables: The tables.
            fix: Where to get them, for the message.

        Raises:
            DataError: Some are missing. The message names all of them.
        """
        missing = [table.patterns[0] for table in tables if not self.files(table)]
        if missing:
            raise DataError(f"data.path: {self.origin} lacks {', '.join(missing)}; {fix}")

    def rows(self, table: Table, kind: type[C], most: int | None = None) -> Iterator[PlacedRow[C]]:
        """Yield the rows of a table in their order, each with its place.

        Args:
            table: The table.
            kind: Model of its columns.
            most: Largest number of rows. None for all rows.

        Raises:
            DataError: There is no such table, or a column of a row is missing or wrong.
        """
        return islice(self._rows(table, kind), most)

    def _rows(self, table: Table, kind: type[C]) -> Iterator[PlacedRow[C]]:
        files = self.files(table)
        for file in files:
            name = file.relative_to(self.folder).as_posix()
            yield from rows_of_file(file, f"{self.origin}/{name}", kind)
        if files:
            return
        if self.repository is None:
            *lines, last = table.patterns
            raise DataError(
                f"{self.origin}: no {', '.join(lines)}{' or ' if lines else ''}{last}; write rows "
                f"with {', '.join(kind.model_fields)} there, or download the hub's data set to it"
            )
        named = self.repository
        source = TableSource(named.name, table.config, table.split, named.revision)
        for row in read_table(source):
            yield row.place, _checked(row.place, row.values, kind)


class PublishedBenchmark(Benchmark):
    """A benchmark whose tables are in a folder of the user, or in a repository on the hub."""

    path: str | None = Field(
        default=None, description="folder of its files; default: the files on the hub"
    )
    hub_id: str = Field(description="data set on the hub")
    revision: str | None = Field(default=None, description="commit or tag on the hub")

    @property
    def repository(self) -> hub.Repository | None:
        """The hub's repository, if rows are read from it."""
        if self.path is not None:
            return None
        return hub.Repository("dataset", self.hub_id, self.revision)

    def open_tables(self, tables: Iterable[Table]) -> Tables:
        """Return the benchmark's tables, of which these are needed, see `open_tables`.

        Raises:
            DataError: They cannot be read.
        """
        return open_tables(self.path, self.repository, tables, setting="path", source=self.source)


def open_tables(
    path: str | None,
    repository: hub.Repository | None,
    tables: Iterable[Table],
    *,
    setting: str,
    source: str,
) -> Tables:
    """Return the tables of a folder, or of a repository whose files are downloaded if necessary.

    Args:
        path: The folder, if the user gives one.
        repository: The repository. It is read only without a folder.
        tables: The tables to download.
        setting: Setting that names the folder, for messages: `path`.
        source: Name of the benchmark, for messages.

    Raises:
        DataError: If the folder does not exist, or the hub has no such repository, keeps it back,
            or cannot be reached.
    """
    if path is not None:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise DataError(
                f"data.{setting}: {path} is not a folder; name the folder of the benchmark's files"
            )
        return Tables(folder, str(folder))
    if repository is None:
        raise DataError(f"data.{setting}: {source} needs the folder of its files")
    patterns = {pattern: None for table in tables for pattern in table.patterns}
    try:
        folder = hub.snapshot(repository, tuple(patterns), subfolders=True)
    except hub.HubError as error:
        raise unreachable(repository, error, setting, source) from error
    return Tables(folder, repository.name, repository)


def unreachable(
    repository: hub.Repository, error: hub.HubError, setting: str, source: str
) -> DataError:
    """Return the error of a repository that cannot be read, with what to do.

    Args:
        repository: The repository.
        error: The hub's reason.
        setting: Setting that can name a folder instead: `path`.
        source: Name of the benchmark.
    """
    text = f"{repository.name}: cannot be read from the hub ({error})"
    if error.answered:
        return DataError(text)
    fix = f"without a network, use a folder of its files: --set data.{setting}=FOLDER"
    if setting == "path":
        fix += f", or of evaluate and attack --data {source}=FOLDER"
    return DataError(f"{text}; {fix}")


def rows_of_file(file: Path, name: str, kind: type[C]) -> Iterator[PlacedRow[C]]:
    """Yield the rows of a file in their order, each with its place.

    Args:
        file: The file, in any format of tables.
        name: Its name in messages.
        kind: Model of its columns.

    Raises:
        DataError: If the file cannot be read, or a column of a row is missing or wrong.
    """
    source = TableSource(str(file))
    try:
        for row in read_table(source):
            place = f"{name}{row.place.removeprefix(source.label)}"
            yield place, _checked(place, row.values, kind)
    except DataError as error:
        # A file of the hub is named by its repository, not by its place in the cache.
        raise DataError(str(error).replace(source.label, name)) from error


def rows_of_list(values: Sequence[Any], place: str, kind: type[C]) -> Iterator[PlacedRow[C]]:
    """Yield the rows of a list inside a column, as of JSON that is one object of lists.

    Args:
        values: The rows, each a mapping of its columns.
        place: Place of the list, for messages.
        kind: Model of the columns.

    Raises:
        DataError: If a column of a row is missing or wrong.
    """
    for number, columns in enumerate(values, 1):
        row_place = f"{place} item {number}"
        yield row_place, _checked(row_place, columns, kind)


def _checked(place: str, values: Any, kind: type[C]) -> C:
    """Return the columns of a row.

    Args:
        place: Place of the row, for messages.
        values: The row, a mapping from column to value.
        kind: Model of the columns.

    Raises:
        DataError: A column is missing or wrong.
    """
    if not isinstance(values, Mapping):
        raise DataError(f"{place}: not an object with the columns {', '.join(kind.model_fields)}")
    columns = {name: values[name] for name in kind.model_fields if name in values}
    try:
        # A strict model takes a list for a tuple only from JSON, and never a number for a text.
        return kind.model_validate_json(json.dumps(columns))
    except ValidationError as error:
        # If a column may have several types, the error of the type that fits best has the most
        # steps: it got furthest into the value.
        details = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
        column, *steps = details["loc"]
        item = "".join(f" item {step + 1}" for step in steps if isinstance(step, int))
        text = describe_error(details)
        raise DataError(f"{place}: column {column!r}{item}: {text}") from None


def data_folder(folder: Path, files: Sequence[str], subject: str, fix: str) -> Path:
    """Return the folder after a check that it has all of some files.

    Args:
        folder: The folder.
        files: Names of the files.
        subject: Name of the folder in messages.
        fix: What to do if a file is missing.

    Raises:
        DataError: The folder does not exist, or lacks a file.
    """
    if not folder.is_dir():
        raise DataError(f"{subject} is not a folder; give the one with {files[0]}")
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{subject} lacks {', '.join(missing)}; {fix}")
    return folder
