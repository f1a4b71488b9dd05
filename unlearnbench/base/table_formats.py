"""Rows of one file, each with the line or number at which it stands.

The package `datasets` reads the file, as a stream: nothing is copied to a cache on disk. What it is
asked for depends on the format, because most of its readers guess types from values:

- Parquet and Arrow files state their types. They are read as they are.
- CSV and TSV files are read as text throughout: "007", "NA" and "2020-01-01" stay what they are.
- JSON is read as lines of text, and each line is decoded by Python's `json`. Arrow's reader of JSON
  makes timestamps of a column in which every text is a date, and its texts are lost.
- A text file has a passage between two blank lines, and a row for each passage.

A file that has no sound rows ends with a DataError that names the file and the line.
"""

import csv
import json
import re
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath
from typing import IO, Any, NamedTuple

from unlearnbench.base.errors import DataError, shortened
from unlearnbench.base.row_texts import row_text

BATCH = 1000
"""Rows that are held at a time."""


class Format(Enum):
    """Formats of files, by the reader of `datasets` that they have."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    TEXT = "text"


_FORMAT_OF_SUFFIX = {
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".txt": Format.TEXT,
}
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
FORMATS_TEXT = "JSON lines, JSON, CSV, TSV, Parquet, Arrow or text"


def format_of(name: str) -> Format | None:
    """Return the format that a file's name states, None if it is no table."""
    path = PurePath(name.lower())
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes = suffixes[:-1]
    return _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None


@dataclass(frozen=True)
class TableFile:
    """A file with rows."""

    path: Path
    name: str
    """How messages name it."""
    format: Format
    separator: str | None = None
    """Of CSV. None: a tab for .tsv, else a comma."""
    header: tuple[str, ...] | None = None
    """Columns of a CSV file whose first line is a row already. None: the first line names them."""
    member: str | None = None
    """Key under which a JSON document has its rows. None: the document is the rows."""


class NumberedRow(NamedTuple):
    """A row, and its line (of text formats) or number (of the others), from 1."""

    number: int
    values: Mapping[str, Any]


def rows_of_file(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the rows of a file.

    Raises:
        DataError: The file cannot be read, or has something that is no row.
    """
    readers = {
        Format.JSON: _json_rows,
        Format.CSV: _csv_rows,
        Format.PARQUET: _typed_rows,
        Format.ARROW: _typed_rows,
        Format.TEXT: _passages,
    }
    return readers[file.format](file)


def columns_of_file(file: TableFile) -> tuple[str, ...]:
    """Return the names of the columns, in the order in which they appear.

    A JSON file is read whole, because a column that only its last row has is a column, too.

    Raises:
        DataError: The file cannot be read, or has something that is no row.
    """
    if file.format is Format.TEXT:
        return ("text",)
    if file.format is Format.CSV:
        return _csv_layout(file).columns
    if file.format is Format.JSON:
        names: dict[str, None] = {}
        for row in rows_of_file(file):
            names.update(dict.fromkeys(row.values))
        return tuple(names)
    with _as_data_error(file):
        return tuple(_stream(file).features or ())


def plain_columns(dataset: Any) -> Any:
    """Return a data set of `datasets` without columns of pictures, sounds and the like.

    To decode them takes packages that are not installed, and no row needs them.
    """
    features: Mapping[str, Any] = dataset.features or {}
    media = [name for name, feature in features.items() if hasattr(feature, "decode")]
    if not media:
        return dataset
    with _without_torch():
        return dataset.remove_columns(media)


def rows_of_batches(batches: Iterator[Mapping[str, Sequence[Any]]]) -> Iterator[NumberedRow]:
    """Yield rows of batches, which have the values of each column."""
    number = 0
    for batch in batches:
        for values in zip(*batch.values(), strict=True):
            number += 1
            yield NumberedRow(number, dict(zip(batch, values, strict=True)))


def _typed_rows(file: TableFile) -> Iterator[NumberedRow]:
    with _as_data_error(file):
        yield from rows_of_batches(plain_columns(_stream(file)).iter(BATCH))


# JSON


def _json_rows(file: TableFile) -> Iterator[NumberedRow]:
    if file.member is not None:
        return _member_rows(file, file.member)
    return _array_rows(file) if _first_character(file) == "[" else _json_lines(file)


def _json_lines(file: TableFile) -> Iterator[NumberedRow]:
    for number, line in enumerate(_lines(file), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise _broken_line(file, number, error) from error
        yield _json_row(file, number, value, line)


def _reason(error: json.JSONDecodeError) -> str:
    """What is wrong, and at which column of its line."""
    # Some of Python's texts end in "at": "Unterminated string starting at".
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _broken_line(file: TableFile, number: int, error: ValueError) -> DataError:
    """The message about a line that is no JSON: the line, or that the file is one document."""
    reason = _reason(error) if isinstance(error, json.JSONDecodeError) else str(error)
    try:
        document = json.loads("\n".join(_lines(file)))
    except ValueError:
        return DataError(f"{file.name}:{number}: broken JSON ({reason})")
    return _no_rows_in(file, document)


def _no_rows_in(file: TableFile, document: object) -> DataError:
    """The message about a file that is one JSON value and no array."""
    members: list[str] = []
    if isinstance(document, dict):
        members = [key for key, value in document.items() if _is_list_of_objects(value)]
    if members:
        text = f"its rows seem to be under {members[0]!r}: write them to a file of their own"
        return DataError(f"{file.name}: {text} (jq -c '.[{json.dumps(members[0])}][]' FILE)")
    return DataError(
        f"{file.name}: one JSON value ({row_text(document)}), no rows; write an array of objects, "
        "or an object on each line"
    )


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _array_rows(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the objects of an array, each with the line on which it begins."""
    cursor = _Cursor(file.name, "\n".join(_lines(file)))
    cursor.skip("[")
    if cursor.next_character() == "]":
        cursor.skip("]")
    else:
        separator = ","
        while separator == ",":
            begin, line = cursor.position, cursor.line
            value = cursor.value()
            if isinstance(value, str):
                value = {"text": value}
            yield _json_row(file, line, value, cursor.text[begin : cursor.position])
            separator = cursor.next_character()
            if separator not in (",", "]"):
                raise cursor.broken("a comma is missing" if separator else "the array has no end")
            cursor.skip(separator)
    if cursor.next_character():
        raise cursor.broken("something follows the array of rows")


_BLANKS = re.compile(r"[ \t\n\r]*")


class _Cursor:
    """A place in a JSON text, with its line.

    Python's `json` decodes a whole document and then knows no lines. Here it decodes one value.
    """

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._decoder = json.JSONDecoder()
        self.text = text
        self.position = 0
        self.line = 1
        self._go_to(self._after_blanks(0))

    def next_character(self) -> str:
        """The next character that is not blank; empty at the end."""
        return self.text[self.position : self.position + 1]

    def skip(self, character: str) -> None:
        """Go behind a character and the blanks after it."""
        self._go_to(self._after_blanks(self.position + len(character)))

    def value(self) -> object:
        """Decode the value that begins here, and go behind it and the blanks after it."""
        try:
            value, end = self._decoder.raw_decode(self.text, self.position)
        except json.JSONDecodeError as error:
            place = f"{self._name}:{error.lineno}"
            raise DataError(f"{place}: broken JSON ({_reason(error)})") from error
        self._go_to(self._after_blanks(end))
        return value

    def broken(self, reason: str) -> DataError:
        """The error about what stands here."""
        return DataError(f"{self._name}:{self.line}: broken JSON ({reason})")

    def _after_blanks(self, position: int) -> int:
        blanks = _BLANKS.match(self.text, position)
        return position if blanks is None else blanks.end()

    def _go_to(self, position: int) -> None:
        self.line += self.text.count("\n", self.position, position)
        self.position = position


def _member_rows(file: TableFile, member: str) -> Iterator[NumberedRow]:
    try:
        document = json.loads("\n".join(_lines(file)))
    except json.JSONDecodeError as error:
        place = f"{file.name}:{error.lineno}"
        raise DataError(f"{place}: broken JSON ({_reason(error)})") from error
    rows: Any = document.get(member) if isinstance(document, dict) else None
    if not _is_list_of_objects(rows):
        raise DataError(f"{file.name}: no array of objects under {member!r}")
    for number, row in enumerate(rows, start=1):
        yield _json_row(file, number, row, "")


def _json_row(file: TableFile, number: int, value: object, source: str) -> NumberedRow:
    if not isinstance(value, dict):
        raise DataError(
            f"{file.name}:{number}: expected an object with a value for each column, "
            f"got {row_text(value)}"
        )
    # JSON can write half of a surrogate pair, which is no text: it cannot be written anywhere.
    if "\\ud" in source or "\\uD" in source:
        for column, content in value.items():
            if _has_half_character(column) or _has_half_character(content):
                raise DataError(
                    f"{file.name}:{number}: column {shortened(column)} has half of a character "
                    "(an unpaired surrogate such as \\ud83d); write the whole pair"
                )
    return NumberedRow(number, value)


def _has_half_character(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _first_character(file: TableFile) -> str:
    """Return the first character that is not blank; empty text if there is none."""
    with _as_data_error(file), _opened(file) as stream:
        while part := stream.read(1 << 16):
            if text := part.strip():
                return text[0]
    return ""


# Texts


def _passages(file: TableFile) -> Iterator[NumberedRow]:
    """Yield passages, which have blank lines between them, with the line of their beginning."""
    lines: list[str] = []
    begin = 0
    for number, line in enumerate(_lines(file), start=1):
        if line.strip():
            begin = begin if lines else number
            lines.append(line)
        elif lines:
            yield NumberedRow(begin, {"text": "\n".join(lines).strip()})
            lines = []
    if lines:
        yield NumberedRow(begin, {"text": "\n".join(lines).strip()})


def _lines(file: TableFile) -> Iterator[str]:
    """Yield the lines of a file without their ends (line feed, carriage return, or both)."""
    with _as_data_error(file):
        for batch in _text_batches(file, Format.TEXT):
            yield from batch["text"]


# CSV


@dataclass(frozen=True)
class _CsvLayout:
    """What stands where in a CSV file, as Python's `csv` sees it."""

    columns: tuple[str, ...]
    blank_lines_before: int
    """Lines before the header."""
    lines: list[int] = field(default_factory=list)
    """The line of each row; 0 for a blank line."""


def _csv_rows(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the rows of a CSV file, all values as text.

    pandas, which reads for `datasets`, fills short rows and moves columns if a row is long. So the
    shape of the file is looked at before, by another reader, which also knows lines.
    """
    layout = _csv_layout(file, all_rows=True)
    import datasets

    features = datasets.Features({name: datasets.Value("string") for name in layout.columns})
    options: dict[str, Any] = {
        "features": features,
        "sep": _separator(file),
        "skiprows": layout.blank_lines_before or None,
        "na_filter": False,
        "keep_default_na": False,
        "skip_blank_lines": False,
        "index_col": False,
    }
    if file.header is not None:
        options |= {"header": None, "names": list(file.header)}
    with _as_data_error(file):
        rows = rows_of_batches(_text_batches(file, Format.CSV, **options))
        for line, row in zip(layout.lines, rows, strict=True):
            if line:
                yield NumberedRow(line, row.values)


def _separator(file: TableFile) -> str:
    if file.separator is not None:
        return file.separator
    return "\t" if ".tsv" in PurePath(file.path.name.lower()).suffixes else ","


def _csv_layout(file: TableFile, *, all_rows: bool = False) -> _CsvLayout:
    """Read the header and, if asked for, the lines at which rows begin.

    Raises:
        DataError: There is no header, or a row has more or fewer values than the header.
    """
    # The limit is one for the whole process. Texts of a benchmark of books are longer than it.
    limit = csv.field_size_limit(sys.maxsize)
    with _as_data_error(file), _opened(file, newline="") as stream:
        reader = csv.reader(stream, delimiter=_separator(file), strict=True)
        begin = 1
        try:
            layout: _CsvLayout | None = None
            if file.header is not None:
                layout = _CsvLayout(file.header, 0)
            for values in reader:
                if layout is None:
                    if not _is_blank(values, 0):
                        layout = _CsvLayout(_header(file, begin, values), begin - 1)
                        if not all_rows:
                            break
                else:
                    layout.lines.append(_line_of_row(file, layout, begin, values))
                begin = reader.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{file.name}:{begin}: broken CSV ({error}); put a text with quotes between "
                'quotes, and write each of its own twice: ""'
            ) from error
        finally:
            csv.field_size_limit(limit)
    if layout is None:
        raise DataError(f"{file.name}: empty; the first line should name the columns")
    return layout


def _is_blank(values: Sequence[str], columns: int) -> bool:
    """Whether a line has nothing. A blank text can be the value of an only column."""
    return not values or (columns != 1 and len(values) == 1 and not values[0].strip())


def _header(file: TableFile, line: int, values: Sequence[str]) -> tuple[str, ...]:
    place = f"{file.name}:{line}"
    if any(not value.strip() for value in values):
        raise DataError(f"{place}: a column has no name; the first line should name the columns")
    for value in values:
        if values.count(value) > 1:
            raise DataError(f"{place}: two columns have the name {shortened(value)}")
    return tuple(values)


def _line_of_row(file: TableFile, layout: _CsvLayout, line: int, values: Sequence[str]) -> int:
    count = len(layout.columns)
    if _is_blank(values, count):
        return 0
    if len(values) != count:
        raise DataError(
            f"{file.name}:{line}: {_counted(len(values), 'value')}, but there "
            f"{'is' if count == 1 else 'are'} {_counted(count, 'column')} "
            f"({shortened(', '.join(layout.columns))}); put a text that has "
            f"{'a tab' if _separator(file) == chr(9) else repr(_separator(file))} between quotes"
        )
    return line


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


# What all formats share


def _stream(file: TableFile, reader: Format | None = None, **options: Any) -> Any:
    """Return the rows of a file as `datasets` reads them: an IterableDataset.

    The classes are called as `Dataset.from_csv` calls them. `load_dataset` would take brackets in a
    path for a pattern, and would tell the hub that someone reads a CSV file.
    """
    quiet()
    from datasets.data_files import DataFilesDict, DataFilesList
    from datasets.packaged_modules.arrow.arrow import Arrow
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.parquet.parquet import Parquet
    from datasets.packaged_modules.text.text import Text

    builder_classes = {
        Format.CSV: Csv,
        Format.PARQUET: Parquet,
        Format.ARROW: Arrow,
        Format.TEXT: Text,
    }
    reader = reader or file.format
    if reader in (Format.CSV, Format.TEXT):
        options["encoding"] = "utf-8-sig"  # with or without the mark that Windows writes
    path = str(file.path.absolute())
    files = DataFilesDict({"train": DataFilesList([path], origin_metadata=[()])})
    # A builder locks a file in its cache, even if it never writes there.
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as cache:
        builder = builder_classes[reader](cache_dir=cache, data_files=files, **options)
    with _without_torch():
        return builder.as_streaming_dataset(split="train")


def _text_batches(
    file: TableFile, reader: Format, **options: Any
) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yield batches of a file whose columns are all texts: the values of each column.

    Without the format `arrow`, `datasets` makes a dictionary of each row and batches of these. That
    takes three times as long.
    """
    stream = _stream(file, reader, **options)
    with _without_torch():
        stream = stream.with_format("arrow")
    for table in stream.iter(BATCH):
        yield table.to_pydict()


@contextmanager
def _without_torch() -> Generator[None, None, None]:
    """Keep `datasets` from importing torch for a stream that no loader of torch will share.

    It takes seconds, and a command that reads a table may need torch for nothing else.
    """
    from datasets import config

    available = config.TORCH_AVAILABLE
    config.TORCH_AVAILABLE = False
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = available


def quiet() -> None:
    """Turn off the progress bars and messages of `datasets`; failures become errors of ours."""
    import datasets

    datasets.disable_progress_bars()
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)


@contextmanager
def _opened(file: TableFile, newline: str | None = None) -> Generator[IO[str], None, None]:
    """Open a text file to look at it ourselves. It may be compressed."""
    import fsspec

    opened: Any = fsspec.open(
        str(file.path.absolute()), "rt", compression="infer", encoding="utf-8-sig", newline=newline
    )
    with opened as stream:
        yield stream


@contextmanager
def _as_data_error(file: TableFile) -> Generator[None, None, None]:
    """Turn any error of a reader into one line that names the file."""
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        line = _undecodable_line(file)
        place = f"{file.name}:{line}" if line else file.name
        raise DataError(f"{place}: not UTF-8 text; save the file as UTF-8") from error
    except Exception as error:  # of the disk, pandas, Arrow or `datasets`: all name no line
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        kind = "" if file.format in (Format.JSON, Format.TEXT) else f" as {file.format.value}"
        reason = reason or type(error).__name__
        raise DataError(f"{file.name}: cannot be read{kind} ({reason})") from error


def _undecodable_line(file: TableFile) -> int | None:
    """The first line that is not UTF-8."""
    import fsspec

    with fsspec.open(str(file.path.absolute()), "rb", compression="infer") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return None
