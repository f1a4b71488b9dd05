"""Rows of a JSON file: an object on each line, an array of objects, or an array inside a document.

Python's `json` decodes the values. Arrow's reader of JSON, which `datasets` uses, would make
timestamps of a column in which every text is a date, and the texts would be lost.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from unlearnbench.base.errors import DataError, shortened
from unlearnbench.base.row_texts import row_text
from unlearnbench.base.table_formats import NumberedRow, TableFile
from unlearnbench.base.table_streams import as_data_error, lines_of, opened_text

_PART = 1 << 16
"""Characters that are read at a time to find the first one that is not blank."""
_BLANKS = re.compile(r"[ \t\n\r]*")


def json_rows(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the rows of a JSON file, each with the line on which it begins.

    Raises:
        DataError: The file cannot be read, is broken, or has something that is no row.
    """
    if file.member is not None:
        return _member_rows(file, file.member)
    if _first_character(file) == "[":
        return _array_rows(file)
    return _rows_of_lines(file)


def _first_character(file: TableFile) -> str:
    """Return the first character that is not blank; empty if there is none."""
    with as_data_error(file), opened_text(file) as stream:
        while part := stream.read(_PART):
            text = part.strip()
            if text:
                return text[0]
    return ""


def _rows_of_lines(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the object on each line. Blank lines are skipped."""
    for number, line in enumerate(lines_of(file), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise _broken_line(file, number, error) from error
        yield _row(file, number, value, line)


def _array_rows(file: TableFile) -> Iterator[NumberedRow]:
    """Yield the objects of an array, each with the line on which it begins.

    A text in the array stands for an object with the column `text`.
    """
    cursor = _Cursor(file.name, "\n".join(lines_of(file)))
    cursor.skip("[")
    has_more = cursor.next_character() != "]"
    if not has_more:
        cursor.skip("]")
    while has_more:
        begin = cursor.position
        line = cursor.line
        value = cursor.value()
        if isinstance(value, str):
            value = {"text": value}
        yield _row(file, line, value, cursor.text[begin : cursor.position])
        separator = cursor.next_character()
        if separator not in (",", "]"):
            raise cursor.broken("a comma is missing" if separator else "the array has no end")
        cursor.skip(separator)
        has_more = separator == ","
    if cursor.next_character():
        raise cursor.broken("something follows the array of rows")


class _Cursor:
    """A place in a JSON text, with its line.

    Python's `json` decodes a whole document, and does not tell on which lines its values were. The
    cursor decodes one value at a time.
    """

    def __init__(self, name: str, text: str) -> None:
        """Go to the first character of a text that is not blank.

        Args:
            name: Name of the file in messages.
            text: The whole document.
        """
        self._name = name
        self._decoder = json.JSONDecoder()
        self.text = text
        self.position = 0
        self.line = 1
        self._go_to(self._after_blanks(0))

    def next_character(self) -> str:
        """Return the character that stands here, which is not blank; empty at the end."""
        return self.text[self.position : self.position + 1]

    def skip(self, character: str) -> None:
        """Go behind a character and the blanks after it."""
        self._go_to(self._after_blanks(self.position + len(character)))

    def value(self) -> object:
        """Decode the value that begins here, and go behind it and the blanks after it.

        Raises:
            DataError: There is no value here.
        """
        try:
            value, end = self._decoder.raw_decode(self.text, self.position)
        except json.JSONDecodeError as error:
            place = f"{self._name}:{error.lineno}"
            raise DataError(f"{place}: broken JSON ({_reason(error)})") from error
        self._go_to(self._after_blanks(end))
        return value

    def broken(self, reason: str) -> DataError:
        """Return the error about what stands here."""
        return DataError(f"{self._name}:{self.line}: broken JSON ({reason})")

    def _after_blanks(self, position: int) -> int:
        blanks = _BLANKS.match(self.text, position)
        return position if blanks is None else blanks.end()

    def _go_to(self, position: int) -> None:
        self.line += self.text.count("\n", self.position, position)
        self.position = position


def _member_rows(file: TableFile, member: str) -> Iterator[NumberedRow]:
    """Yield the objects of an array under a key of the document, numbered from 1."""
    try:
        document = json.loads("\n".join(lines_of(file)))
    except json.JSONDecodeError as error:
        place = f"{file.name}:{error.lineno}"
        raise DataError(f"{place}: broken JSON ({_reason(error)})") from error
    rows: Any = document.get(member) if isinstance(document, dict) else None
    if not _is_list_of_objects(rows):
        raise DataError(f"{file.name}: no array of objects under {member!r}")
    for number, row in enumerate(rows, start=1):
        yield _row(file, number, row, "")


def _row(file: TableFile, number: int, value: object, source: str) -> NumberedRow:
    """Check that a JSON value is a row.

    Args:
        file: File of the value.
        number: Its line.
        value: The decoded value.
        source: The text that it was decoded from. Empty if the text is not known.
    """
    if not isinstance(value, dict):
        raise DataError(
            f"{file.name}:{number}: expected an object with a value for each column, "
            f"got {row_text(value)}"
        )
    # JSON can escape half of a surrogate pair, which is no character and cannot be written to any
    # file. The search for an escape is fast, and most texts have none.
    if "\\ud" in source or "\\uD" in source:
        for column, content in value.items():
            if _has_half_character(column) or _has_half_character(content):
                raise DataError(
                    f"{file.name}:{number}: column {shortened(column)} has half of a character "
                    "(an unpaired surrogate such as \\ud83d); write the whole pair"
                )
    return NumberedRow(number, value)


def _has_half_character(value: object) -> bool:
    """Whether a JSON value contains a text that UTF-8 cannot encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _broken_line(file: TableFile, number: int, error: ValueError) -> DataError:
    """Return the error about a line that is no JSON.

    If the file as a whole is one JSON value over several lines, the error says so.
    """
    reason = _reason(error) if isinstance(error, json.JSONDecodeError) else str(error)
    try:
        document = json.loads("\n".join(lines_of(file)))
    except ValueError:
        return DataError(f"{file.name}:{number}: broken JSON ({reason})")
    return _no_rows_in(file, document)


def _no_rows_in(file: TableFile, document: object) -> DataError:
    """Return the error about a file that is one JSON value and no array."""
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


def _reason(error: json.JSONDecodeError) -> str:
    """Describe an error, with its column: `Expecting value at column 7`."""
    # Some of Python's texts end in "at": "Unterminated string starting at".
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"
