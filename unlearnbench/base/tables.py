"""Tables of questions or texts: a user's files, a folder, a data set of the hub, or of Python.

A `TableSource` says where a table is. `read_table` yields its rows, each with its place for
messages, such as `forget.jsonl:12`. All tables except JSON and text are read by the package
`datasets`, which is imported only when rows are read. `table_files` finds the files, `file_rows`
reads one.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from unlearnbench.base import hub, table_files
from unlearnbench.base.errors import DataError, did_you_mean, shortened
from unlearnbench.base.file_rows import columns_of_file, rows_of_file
from unlearnbench.base.row_texts import row_text
from unlearnbench.base.table_formats import Format, TableFile, format_of
from unlearnbench.base.table_streams import BATCH, plain_columns, quiet, rows_of_batches

if TYPE_CHECKING:
    import datasets

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NOTATION = re.compile(
    r"(?P<path>[^:\[\]@]+)(:(?P<config>[^:\[\]@]+))?(\[(?P<split>.+)\])?(@(?P<revision>[^\[\]@]+))?"
)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
"""How a path begins on Windows."""


@dataclass(frozen=True)
class TableSource:
    """Where a table is.

    What is on this machine goes before the hub: if there is a folder `org/name`, it is read.
    """

    path: str
    """A file, a folder of `save_to_disk` or of data files, or a hub id: `org/name`."""
    config: str | None = None
    """Configuration of a data set. None for the only one, or for its default."""
    split: str | None = None
    """`train`, or a part: `train[:2000]`, `train[10%:20%]`. None for the only split, or for `train`
    if there are several."""
    revision: str | None = None
    """Branch, tag or commit of a hub data set. None for `main`."""

    @classmethod
    def parse(cls, text: str) -> TableSource:
        """Read the notation `org/name:config[train[:200]]@revision`.

        Everything except the path is optional. A text that is the path of a file or folder is that
        path, whatever characters it has.
        """
        whole = text.strip()
        if _exists(whole) or _DRIVE.match(whole):
            return cls(whole)
        match = _NOTATION.fullmatch(whole)
        if match is None:
            return cls(whole)
        return cls(match["path"].strip(), match["config"], match["split"], match["revision"])

    @property
    def is_local(self) -> bool:
        """Whether the table is on this machine, or could only be there."""
        if _exists(self.path) or _HUB_ID.fullmatch(self.path) is None:
            return True
        return format_of(self.path) is not None

    @property
    def repository(self) -> hub.Repository | None:
        """The repository of the hub; None if the table is on this machine."""
        return None if self.is_local else hub.Repository("dataset", self.path, self.revision)

    @property
    def label(self) -> str:
        """The source as messages name it, in the notation of `parse`."""
        config = f":{self.config}" if self.config else ""
        split = f"[{self.split}]" if self.split else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.path}{config}{split}{revision}"


@dataclass(frozen=True)
class TableRow:
    """A row: its values by column, and where it stands.

    A column that other rows have may be missing in `values`, or be None.
    """

    values: Mapping[str, Any]
    place: str
    """`forget.jsonl:12`: the file, and the line on which the row begins. In formats without lines,
    such as Parquet, the number of the row."""


def read_table(
    source: TableSource | datasets.Dataset, *, text_columns: Collection[str] = ()
) -> Iterator[TableRow]:
    """Read the rows of a table.

    The table is looked up at once. Rows are read while they are taken.

    Args:
        source: Where the table is, or a data set of the package `datasets`.
        text_columns: Columns whose values are texts. They are never read as numbers, dates or
            missing values. A value that is no text is an error, except a missing one (None).
            All columns of CSV and TSV files are texts.

    Raises:
        DataError: The table, a column or a row is missing or wrong. The message is one line.
    """
    table = _table(source)
    rows = table.rows()
    first = next(rows, None)
    if first is None:
        raise DataError(f"{table.label}: no rows")
    if any(column not in first.values for column in text_columns):
        columns = table.columns()
        for column in text_columns:
            if column not in columns:
                raise _missing_column(table.label, column, columns)
    return _checked(chain([first], rows), text_columns)


def read_passages(path: str) -> Iterator[TableRow]:
    """Read a text file, whatever its suffix: a row for each passage, with the column `text`.

    Passages have blank lines between them.

    Raises:
        DataError: There is no such file, or it has no text.
    """
    if not _exists(path):
        raise _not_found(TableSource(path))
    file = TableFile(Path(path).expanduser(), path, Format.TEXT)
    rows = _FileSplit(partial(_local, [file])).rows()
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: no rows; write passages with a blank line between them")
    return chain([first], rows)


def column_names(source: TableSource | datasets.Dataset) -> tuple[str, ...]:
    """Return the names of a table's columns, in the order in which they appear.

    All rows of JSON are read, because a column that only some rows have counts, too.

    Raises:
        DataError: The table is missing or wrong.
    """
    return _table(source).columns()


def _missing_column(label: str, column: str, columns: Sequence[str]) -> DataError:
    """Return the error about a column that a table lacks, with a column of a similar name."""
    lower_case = {name.lower(): name for name in columns}
    near = get_close_matches(column.lower(), lower_case, n=1, cutoff=0.6)
    hint = header_hint(columns)
    if near and not hint:
        hint = f"; did you mean {lower_case[near[0]]!r}?"
    listed = ", ".join(map(shortened, columns[:20]))
    return DataError(f"{label}: no column {column!r}; it has {listed}{hint}")


def header_hint(columns: Sequence[str]) -> str:
    """Return what may be wrong with a CSV file that has these columns; empty if nothing."""
    if len(columns) == 1 and ";" in columns[0]:
        return "; its values seem to be separated by semicolons: save it with commas"
    if len(columns) == 1 and "\t" in columns[0]:
        return "; its values seem to be separated by tabs: give it the suffix .tsv"
    if any(len(name) > 40 or name.endswith((".", "?", "!", "。")) for name in columns):
        return "; these look like values: the first line should name the columns"
    return ""


def _checked(rows: Iterator[TableRow], text_columns: Collection[str]) -> Iterator[TableRow]:
    """Yield the rows. Raise DataError at a row whose value in one of the columns is no text."""
    for row in rows:
        for column in text_columns:
            value = row.values.get(column)
            if value is not None and not isinstance(value, str):
                raise DataError(
                    f"{row.place}: column {column!r} should have a text, got {_described(value)}"
                )
        yield row


def _described(value: object) -> str:
    """Describe a value that is no text: `the number 42`, `a list [1, 2]`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value} (put it between quotes)"
    if isinstance(value, list | tuple):
        return f"a list {row_text(value)}"
    if isinstance(value, Mapping):
        return f"an object {row_text(value)}"
    return f"the {type(value).__name__} {row_text(value)}"


# What a source consists of


class _Split(ABC):
    """All rows of a split."""

    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Return the names of its columns."""

    @abstractmethod
    def rows(self) -> Iterator[TableRow]:
        """Read its rows."""


class _FileSplit(_Split):
    """A split that is in files."""

    def __init__(self, files: Callable[[], Sequence[TableFile]]) -> None:
        """`files` returns the files, and fetches them first if they are not on this machine."""
        self._files = files

    def columns(self) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for file in self._files():
            names.update(dict.fromkeys(columns_of_file(file)))
        return tuple(names)

    def rows(self) -> Iterator[TableRow]:
        for file in self._files():
            for number, values in rows_of_file(file):
                yield TableRow(values, f"{file.name}:{number}")


class _DatasetSplit(_Split):
    """A split that is a data set of the package `datasets`."""

    def __init__(self, dataset: datasets.Dataset, name: str) -> None:
        self._dataset = plain_columns(dataset.with_format(None))
        self._name = name

    def columns(self) -> tuple[str, ...]:
        return tuple(self._dataset.column_names)

    def rows(self) -> Iterator[TableRow]:
        for number, values in rows_of_batches(self._dataset.iter(BATCH)):
            yield TableRow(values, f"{self._name}:{number}")


class _Part(NamedTuple):
    """Rows from `begin` up to `end` of a split."""

    split: _Split
    begin: int = 0
    end: int | None = None


class _Table:
    """A source that was looked up: the parts that it consists of."""

    def __init__(self, label: str, parts: Sequence[_Part]) -> None:
        self.label = label
        self._parts = parts

    def columns(self) -> tuple[str, ...]:
        """Return the names of all columns, in the order in which they appear."""
        names: dict[str, None] = {}
        for part in self._parts:
            names.update(dict.fromkeys(part.split.columns()))
        return tuple(names)

    def rows(self) -> Iterator[TableRow]:
        """Read the rows."""
        for part in self._parts:
            yield from islice(part.split.rows(), part.begin, part.end)


def _table(source: TableSource | datasets.Dataset) -> _Table:
    """Look up a source.

    Raises:
        DataError: There is no such table.
    """
    if isinstance(source, TableSource):
        try:
            return _Table(source.label, _parts(source, _splits(source)))
        except hub.HubError as error:
            raise _unreachable(source, error) from error
    import datasets

    # The value may come from Python, where nothing enforces its type.
    given = cast("object", source)
    if isinstance(given, datasets.Dataset):
        return _Table(_DATASET, [_Part(_DatasetSplit(given, _DATASET))])
    raise DataError(f"expected a datasets.Dataset, got {type(source).__name__}; name one split")


_DATASET = "the data set"
"""How messages name a data set that has no file."""


def _splits(source: TableSource) -> Mapping[str, _Split]:
    """Return the splits that a source has, by name.

    Raises:
        DataError: There is nothing that can be read.
        HubError: The hub cannot be asked.
    """
    repository = source.repository
    if repository is not None:
        files_by_split = table_files.files_of_repository(repository, source.config)
        return {
            split: _FileSplit(partial(_fetched, source, repository, files))
            for split, files in files_by_split.items()
        }
    path = Path(source.path).expanduser()
    if not path.exists():
        raise _not_found(source)
    if source.revision is not None:
        raise DataError(
            f"{source.path}: is on this machine and has no revision {source.revision!r}"
        )
    if path.is_dir() and not table_files.is_saved_dataset(path):
        local_files = table_files.files_of_folder(path, source.path, source.config)
    elif source.config is not None:
        raise DataError(f"{source.path}: has no configurations, but {source.config!r} is asked for")
    elif path.is_dir():
        return _saved_splits(path, source.path)
    else:
        local_files = table_files.single_file(path, source.path)
    return {split: _FileSplit(partial(_local, files)) for split, files in local_files.items()}


def _local(files: Sequence[TableFile]) -> Sequence[TableFile]:
    return files


def _fetched(
    source: TableSource, repository: hub.Repository, files: Sequence[str]
) -> Sequence[TableFile]:
    """Download files of a repository. Raise DataError if the hub does not send them."""
    try:
        return table_files.fetched(repository, source.config, files)
    except hub.HubError as error:
        raise _unreachable(source, error) from error


def _saved_splits(folder: Path, label: str) -> dict[str, _Split]:
    """Return the splits that `save_to_disk` wrote. Their files are mapped into memory."""
    quiet()
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder.absolute()))
    except Exception as error:  # The disk, JSON and Arrow raise errors of many types.
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{label}: is no whole folder of save_to_disk ({reason})") from error
    if isinstance(saved, datasets.Dataset):
        return {str(saved.split or "train"): _DatasetSplit(saved, label)}
    return {
        str(split): _DatasetSplit(dataset, f"{label}/{split}") for split, dataset in saved.items()
    }


# Parts of splits


_DEPENDS_ON_ROW_COUNT = re.compile(r"\[[^\]]*[-%]")
"""Matches a part that depends on the number of rows in the split: `[10%:]`, `[-100:]`."""
_MORE_ROWS_THAN_THERE_ARE = 2**62
"""Stands for the number of rows if the part does not depend on it."""


def _parts(source: TableSource, splits: Mapping[str, _Split]) -> list[_Part]:
    """Return what the source's `split` names.

    Raises:
        DataError: There is no such split, or it is not clear which is meant.
    """
    names = list(splits)
    if source.split is None:
        name = names[0] if len(names) == 1 else "train"
        if name not in splits:
            example = dataclasses.replace(source, split=names[0]).label
            raise DataError(
                f"{source.label}: which split? It has {', '.join(names)}; write {example}"
            )
        return [_Part(splits[name])]
    if source.split in splits:
        return [_Part(splits[source.split])]
    terms = re.split(r"\s*\+\s*", source.split)
    return [_part(source, term, splits) for term in terms]


def _part(source: TableSource, term: str, splits: Mapping[str, _Split]) -> _Part:
    """Return the part of a split that a term such as `train[:10%]` names.

    Raises:
        DataError: There is no such split, or no such part of it.
    """
    name = term.partition("[")[0].strip()
    if name not in splits:
        hint = did_you_mean(name, splits, cutoff=0.6)
        raise DataError(f"{source.label}: no split {name!r}; it has {', '.join(splits)}{hint}")
    split = splits[name]
    import datasets

    count = _MORE_ROWS_THAN_THERE_ARE
    if _DEPENDS_ON_ROW_COUNT.search(term):
        count = sum(1 for _ in split.rows())
    try:
        # `datasets` allows only some characters in a name. The name does not matter here.
        instruction = datasets.ReadInstruction.from_spec(term.replace(name, "split", 1).strip())
        (bounds,) = instruction.to_absolute({"split": count})
    except (ValueError, AssertionError) as error:
        raise DataError(
            f"{source.label}: {term!r} is no part of a split ({error}); write {name}[:100], "
            f"{name}[100:200] or {name}[10%:20%]"
        ) from error
    return _Part(split, bounds.from_, bounds.to)


# What is not there


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        # The path is too long, its user has no home, or it has a null character.
        return False


def _not_found(source: TableSource) -> DataError:
    """Return the error about a path that does not exist, with a file of a similar name."""
    path = Path(source.path).expanduser()
    names: list[str] = []
    if path.parent.is_dir():
        names = [entry.name for entry in path.parent.iterdir() if entry.name[:1] != "."]
    near = get_close_matches(path.name, names, n=1, cutoff=0.75)
    hint = f"; did you mean {str(Path(source.path).parent / near[0])!r}?" if near else ""
    is_id = _HUB_ID.fullmatch(source.path) is not None or hint
    fix = "" if is_id else "; a data set of the hub has a name like org/name"
    return DataError(f"{source.path}: no such file or folder{hint or fix}")


def _unreachable(source: TableSource, error: hub.HubError) -> DataError:
    """Return the error about a table that is not here, and that the hub does not send."""
    fix = "" if error.answered else "; without a network, name a file or folder of this machine"
    return DataError(
        f"{source.label}: there is no such file or folder here, and from the hub it cannot be "
        f"read: {error}{fix}"
    )
