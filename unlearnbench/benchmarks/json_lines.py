"""Rows of JSON files in a folder; a fault is one line with its file, line and column."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from unlearnbench.base.errors import DataError
from unlearnbench.base.messages import describe_error


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank; every question and answer needs words")
    return text


Words = Annotated[str, AfterValidator(_not_blank)]
"""A text that is not blank."""


class JsonRow(BaseModel):
    """Columns of a line; others are ignored."""

    model_config = ConfigDict(strict=True)


R = TypeVar("R", bound=JsonRow)


def json_rows(file: Path, name: str, kind: type[R]) -> Iterator[tuple[str, R]]:
    """Yield each row with its location. Lines end with a line feed alone.

    name  of the file, for messages

    Raises: DataError for a column that is missing or wrong.
    """
    lines = file.read_bytes().removeprefix(BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            location = f"{name}:{number}"
            yield location, _columns(location, line, kind)


def _columns(location: str, line: bytes, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        # Of the members of a union, the one that fits best.
        details = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
        if not details["loc"]:
            text = f"{location}: not a JSON object on one line ({details['msg']})"
            raise DataError(f"{text}; write each row on a line (jq -c '.[]' FILE)") from None
        column, *item = details["loc"]
        number = "".join(f" item {step + 1}" for step in item if isinstance(step, int))
        text = describe_error(details)
        raise DataError(f"{location}: column {column!r}{number}: {text}") from None


def json_array(file: Path, kind: type[R]) -> Iterator[tuple[str, R]]:
    """Yield each row of a file that is one array of objects, with its location.

    Raises: DataError for another file, or a wrong row.
    """
    try:
        rows = TypeAdapter(list[dict[str, Any]]).validate_json(file.read_bytes())
    except ValidationError as error:
        details = describe_error(error.errors(include_url=False)[0])
        raise DataError(f"{file}: not an array of rows ({details}); download it again") from None
    for number, row in enumerate(rows, 1):
        location = f"{file}:row {number}"
        yield location, _columns(location, json.dumps(row).encode(), kind)


def table_rows(folder: Path, name: str, split: str, kind: type[R]) -> Iterator[tuple[str, R]]:
    """Yield the rows of a table, each with its location: of JSON lines, or of the hub's files.

    Raises: DataError where there is neither, or for a wrong row.
    """
    lines = [f"{name}.jsonl", f"{split}/{name}.jsonl", f"{name}/{split}.jsonl"]
    if file := next((folder / line for line in lines if (folder / line).is_file()), None):
        yield from json_rows(file, str(file), kind)
        return
    files = sorted(folder.glob(f"{name}/{split}-*.parquet"))
    if not files:
        raise DataError(
            f"{folder}: no {', '.join(lines)} or {name}/{split}-*.parquet; write rows with "
            f"{', '.join(kind.model_fields)} there, or download the hub's data set to it"
        )
    from pyarrow import parquet

    for file in files:
        table = parquet.read_table(file, columns=list(kind.model_fields))
        for number, row in enumerate(table.to_pylist(), 1):
            location = f"{file}:{number}"
            yield location, _columns(location, json.dumps(row).encode(), kind)


def data_folder(folder: Path, files: Sequence[str], subject: str, fix: str) -> Path:
    """The folder, which has all `files`. Raises: DataError where it has not.

    subject, fix  its name for messages, and what to do where a file is missing
    """
    if not folder.is_dir():
        raise DataError(f"{subject} is not a folder; give the one with {files[0]}")
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise DataError(f"{subject} lacks {', '.join(missing)}; {fix}")
    return folder
