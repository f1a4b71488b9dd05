"""Files of every format give the rows that are in them, as texts, and copy them nowhere."""

import csv
import gzip
import io
import json
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from unlearnbench.base.errors import DataError
from unlearnbench.base.table_formats import Format, TableFile
from unlearnbench.base.tables import TableRow, TableSource, column_names, read_table

TEXTS = [
    "007",
    "NA",
    "null",
    "nan",
    "",
    "True",
    "1e5",
    "2020-01-01",
    "2020-01-01T10:00:00Z",
    "  leading",
    "trailing  ",
    'a "quoted" word',
    "two\nlines",
    "comma, semicolon; tab\t",
    "U+2028\u2028and\u0085others\u2029",
    "中文 😀",
    "\\N",
    "#N/A",
]
"""What some reader takes for something else."""


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    """The values of a file's rows."""
    return [dict(row.values) for row in read_table(TableSource(str(path)), **options)]


def places(path: Path) -> list[str]:
    """The places of a file's rows, without the folder."""
    return [row.place.removeprefix(f"{path.parent}/") for row in read_table(TableSource(str(path)))]


def written(path: Path, content: str | bytes) -> Path:
    """A file with this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def message(path: Path, **options: Any) -> str:
    """The error about a file, without its folder. It is one line."""
    with pytest.raises(DataError) as caught:
        list(read_table(TableSource(str(path)), **options))
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(f"{path.parent}/", "")


def as_json_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def as_array(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text(json.dumps(rows, indent=1), "utf-8")


def as_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        quoting: Any = csv.QUOTE_ALL if path.stem == "quoted" else csv.QUOTE_MINIMAL
        writer = csv.DictWriter(file, [*rows[0]], delimiter=delimiter, quoting=quoting)
        writer.writeheader()
        writer.writerows(rows)


def as_parquet(path: Path, rows: list[dict[str, str]]) -> None:
    parquet.write_table(pa.Table.from_pylist(rows), path)


def as_arrow(path: Path, rows: list[dict[str, str]]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path, list[dict[str, str]]], None]] = {
    "rows.jsonl": as_json_lines,
    "lines.json": as_json_lines,
    "rows.json": as_array,
    "rows.csv": as_csv,
    "quoted.csv": as_csv,
    "rows.tsv": as_csv,
    "rows.parquet": as_parquet,
    "rows.arrow": as_arrow,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_column_of_one_text_stays_that_text(name: str, text: str, tmp_path: Path) -> None:
    # A whole column of dates or numbers is what type inference falls for.
    rows = [{"question": text, "answer": "a"}, {"question": text, "answer": "b"}]
    WRITERS[name](tmp_path / name, rows)
    assert rows_of(tmp_path / name, text_columns=["question"]) == rows
    assert column_names(TableSource(str(tmp_path / name))) == ("question", "answer")


WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from('",\n\t\r '),
    max_size=12,
)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, str]]:
    """Rows that have the same columns."""
    names = draw(
        st.lists(st.text(string.ascii_letters, min_size=1), min_size=1, max_size=4, unique=True)
    )
    return draw(
        st.lists(st.fixed_dictionaries(dict.fromkeys(names, WORDS)), min_size=1, max_size=6)
    )


@pytest.mark.parametrize("name", WRITERS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=tables())
def test_random_tables_are_what_an_independent_reader_finds(
    name: str, rows: list[dict[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / name
    WRITERS[name](path, rows)
    expected: list[dict[str, Any]]
    if path.suffix in (".csv", ".tsv"):
        text = path.read_bytes().decode()
        delimiter = "\t" if path.suffix == ".tsv" else ","
        expected = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
    elif path.suffix in (".json", ".jsonl"):
        text = path.read_text("utf-8")
        lines = text.split("\n")
        is_array = name == "rows.json"
        expected = json.loads(text) if is_array else [json.loads(line) for line in lines if line]
    else:
        expected = pa.Table.from_pylist(rows).to_pylist()
    assert expected == rows
    assert rows_of(path, text_columns=[*rows[0]]) == expected
    assert column_names(TableSource(str(path))) == (*rows[0],)


def test_a_place_is_the_line_on_which_a_row_begins(tmp_path: Path) -> None:
    lines = written(tmp_path / "a.jsonl", '\ufeff{"a": "1"}\n\n  \n{"a": "2\u2028"}\r\n{"a": "3"}')
    assert places(lines) == ["a.jsonl:1", "a.jsonl:4", "a.jsonl:5"]
    array = written(tmp_path / "a.json", '\n[\n {"a":\n  "[,]\\n"}\n, {"a": 1}, {"b": 2}\n]\n')
    assert places(array) == ["a.json:3", "a.json:5", "a.json:5"]
    table = written(tmp_path / "a.csv", '\n\na,b\n"1\n1",2\n\n   \n3,4\n"",\n\n')
    assert places(table) == ["a.csv:4", "a.csv:8", "a.csv:9"]
    assert rows_of(table)[2] == {"a": "", "b": ""}
    text = written(tmp_path / "a.txt", "\n one\n  two \n \t\n\n\nthree\r\nfour\r\n\r\nfive")
    assert places(text) == ["a.txt:2", "a.txt:7", "a.txt:10"]
    assert [row["text"] for row in rows_of(text)] == ["one\n  two", "three\nfour", "five"]
    as_parquet(tmp_path / "a.parquet", [{"a": "1"}, {"a": "2"}])
    assert places(tmp_path / "a.parquet") == ["a.parquet:1", "a.parquet:2"]


def test_lines_of_carriage_returns_and_marks_of_windows_are_read(tmp_path: Path) -> None:
    for name, content in {
        "a.csv": "\ufeffa,b\r\n1,2\r\n",
        "a.tsv": "\ufeffa\tb\r\n1\t2",
        "a.jsonl": '\ufeff{"a": "1", "b": "2"}\r\n',
        "a.json": '\ufeff[{"a": "1", "b": "2"}]\r\n',
    }.items():
        assert rows_of(written(tmp_path / name, content)) == [{"a": "1", "b": "2"}]
    assert rows_of(written(tmp_path / "a.txt", "\ufeffone\r\n")) == [{"text": "one"}]


def test_values_of_json_keep_their_types_and_rows_their_own_columns(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "wrong": ["x", "y"], "score": 0.5, "mixed": 1},
        {"question": "b", "messages": [{"role": "user", "content": "?"}], "mixed": "1e5"},
        {"question": "c", "mixed": ["2020-01-01"], "big": 12345678901234567890123},
        {"question": None, "mixed": None},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert rows_of(path, text_columns=["question"]) == rows
    # The last column is in one of the last rows only.
    expected = ("question", "wrong", "score", "mixed", "messages", "big")
    assert column_names(TableSource(str(path))) == expected
    assert rows_of(path, text_columns=["question"]) == rows


def test_a_column_that_only_a_later_row_has_is_no_missing_column(tmp_path: Path) -> None:
    rows = [{"question": str(i)} for i in range(2000)] + [{"question": "x", "paraphrase": "y"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert rows_of(path, text_columns=["question", "paraphrase"]) == rows


def test_an_array_of_texts_has_the_column_text(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", '["one", "2020-01-01"]')
    assert rows_of(path, text_columns=["text"]) == [{"text": "one"}, {"text": "2020-01-01"}]


def test_texts_longer_than_the_limit_of_csv_are_read(tmp_path: Path) -> None:
    long = "word " * 100_000
    as_csv(tmp_path / "a.csv", [{"text": long}, {"text": "short"}])
    limit = csv.field_size_limit()
    assert [row["text"] for row in rows_of(tmp_path / "a.csv")] == [long, "short"]
    assert csv.field_size_limit() == limit


def test_compressed_files_are_read(tmp_path: Path) -> None:
    for name, content in {
        "a.jsonl.gz": b'{"a": "007"}\n',
        "a.csv.gz": b"a\n007\n",
        "a.json.gz": b'[{"a": "007"}]',
    }.items():
        assert rows_of(written(tmp_path / name, gzip.compress(content))) == [{"a": "007"}]


def test_paths_with_patterns_are_paths(tmp_path: Path) -> None:
    folder = tmp_path / "my [data]* (1)"
    folder.mkdir()
    for name in ("rows[1].jsonl", "rows{a,b}?.jsonl"):
        path = folder / name
        path.write_text('{"a": "1"}\n')
        assert rows_of(path) == [{"a": "1"}]
    source = TableSource(str(folder))
    assert [row.values for row in read_table(source)] == [{"a": "1"}, {"a": "1"}]


def test_a_stream_that_is_left_early_leaves_nothing_open(tmp_path: Path) -> None:
    as_json_lines(tmp_path / "a.jsonl", [{"a": str(i)} for i in range(5000)])
    assert next(read_table(TableSource(str(tmp_path / "a.jsonl")))).values == {"a": "0"}


def test_rows_of_local_files_are_copied_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    (tmp_path / "temporary").mkdir()
    (tmp_path / "data").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.DOWNLOADED_DATASETS_PATH", tmp_path / "downloads")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, write in WRITERS.items():
        write(tmp_path / "data" / name, [{"a": "1"}] * 3)
        rows_of(tmp_path / "data" / name)
    datasets.Dataset.from_list([{"a": "1"}]).save_to_disk(tmp_path / "data" / "saved")
    rows_of(tmp_path / "data" / "saved")
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert all(path.is_relative_to(tmp_path / "data") for path in files)
    assert not list((tmp_path / "temporary").iterdir())


# What is wrong


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", '{"a": "1"}\n{"a": \n', "a.jsonl:2: broken JSON (Expecting value at column 7)"),
        (
            "a.jsonl",
            '{"a": "1"}\n{"a": "2\n',
            "a.jsonl:2: broken JSON (Unterminated string starting at column 7)",
        ),
        (
            "a.jsonl",
            '{"a": "1"}\n\n["x"]\n',
            "a.jsonl:3: expected an object with a value for each column, got ['x']",
        ),
        (
            "a.json",
            '[{"a": 1},\n {"a": 2}\n {"a": 3}]',
            "a.json:3: broken JSON (a comma is missing)",
        ),
        ("a.json", '[{"a": 1},\n {"a": 2}\n', "a.json:2: broken JSON (the array has no end)"),
        (
            "a.json",
            '[{"a": 1},\n {"a": nope}]',
            "a.json:2: broken JSON (Expecting value at column 8)",
        ),
        (
            "a.json",
            '[{"a": 1}]\n[]',
            "a.json:2: broken JSON (something follows the array of rows)",
        ),
        (
            "a.json",
            '{\n "data": [{"a": 1}]\n}',
            "a.json: its rows seem to be under 'data': write them to a file of their own "
            "(jq -c '.[\"data\"][]' FILE)",
        ),
        (
            "a.json",
            '{\n "a": 1\n}',
            "a.json: one JSON value ({'a': 1}), no rows; write an array of objects, or an object "
            "on each line",
        ),
        (
            "a.jsonl",
            '{"a": "x"}\n{"a": "\\ud83d"}',
            "a.jsonl:2: column 'a' has half of a character (an unpaired surrogate such as "
            "\\ud83d); write the whole pair",
        ),
        ("a.jsonl", "", "a.jsonl: no rows"),
        ("a.json", "[]", "a.json: no rows"),
        ("a.txt", "\n \n", "a.txt: no rows"),
        ("a.csv", "", "a.csv: empty; the first line should name the columns"),
        ("a.csv", "a,b\n", "a.csv: no rows"),
        (
            "a.csv",
            "a,b\n1,2\n1,2,3\n",
            "a.csv:3: 3 values, but there are 2 columns ('a, b'); put a text that has ',' between "
            "quotes",
        ),
        (
            "a.tsv",
            'a\tb\n"1\n"\t2\n1\n',
            "a.tsv:4: 1 value, but there are 2 columns ('a, b'); put a text that has a tab between "
            "quotes",
        ),
        (
            "a.csv",
            'a,b\n1,2\n"1,2\n3,4\n',
            "a.csv:3: broken CSV (unexpected end of data); put a text with quotes between quotes, "
            'and write each of its own twice: ""',
        ),
        ("a.csv", "a,a\n1,2\n", "a.csv:1: two columns have the name 'a'"),
        (
            "a.csv",
            "a,\n1,2\n",
            "a.csv:1: a column has no name; the first line should name the columns",
        ),
        (
            "a.jsonl",
            b'{"a": "1"}\n{"a": "\xff"}\n',
            "a.jsonl:2: not UTF-8 text; save the file as UTF-8",
        ),
        ("a.csv", b"a\n1\n\xff\n", "a.csv:3: not UTF-8 text; save the file as UTF-8"),
        ("a.txt", b"a\n\n\xff\n", "a.txt:3: not UTF-8 text; save the file as UTF-8"),
    ],
)
def test_a_broken_file_is_one_line_with_its_place(
    name: str, content: str | bytes, expected: str, tmp_path: Path
) -> None:
    assert message(written(tmp_path / name, content)) == expected


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_broken_binary_file_is_named(name: str, tmp_path: Path) -> None:
    text = message(written(tmp_path / name, b"no table at all"))
    assert text.startswith(f"{name}: cannot be read as {name[2:]} (")


def test_a_value_that_is_no_text_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"a": "1"}\n\n{"a": 7}\n')
    assert rows_of(path) == [{"a": "1"}, {"a": 7}]
    expected = "a.jsonl:3: column 'a' should have a text, got the number 7 (put it between quotes)"
    assert message(path, text_columns=["a"]) == expected
    path = written(tmp_path / "b.json", '[{"a": "1"},\n{"a": ["x"]}]')
    expected = "b.json:2: column 'a' should have a text, got a list ['x']"
    assert message(path, text_columns=["a"]) == expected
    path = written(tmp_path / "c.jsonl", '{"a": {"b": true}}')
    assert message(path, text_columns=["a"]) == (
        "c.jsonl:1: column 'a' should have a text, got an object {'b': True}"
    )
    parquet.write_table(pa.table({"a": [1, 2]}), tmp_path / "d.parquet")
    expected = (
        "d.parquet:1: column 'a' should have a text, got the number 1 (put it between quotes)"
    )
    assert message(tmp_path / "d.parquet", text_columns=["a"]) == expected


def test_a_missing_column_names_the_file_its_columns_and_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"question": "q"}\n{"answer": "a"}\n')
    assert message(path, text_columns=["question", "Anwser"]) == (
        "a.jsonl: no column 'Anwser'; it has 'question', 'answer'; did you mean 'answer'?"
    )
    path = written(tmp_path / "a.csv", "Who is she?,She is a writer.\nWho?,He.\n")
    assert message(path, text_columns=["question"]) == (
        "a.csv: no column 'question'; it has 'Who is she?', 'She is a writer.'; these look like "
        "values: the first line should name the columns"
    )
    path = written(tmp_path / "b.csv", "question;answer\na;b\n")
    assert message(path, text_columns=["question"]) == (
        "b.csv: no column 'question'; it has 'question;answer'; its values seem to be separated by "
        "semicolons: save it with commas"
    )


@pytest.mark.parametrize(
    ("name", "text", "library"), [("a.jsonl", '{"a": "1"}\n', "False"), ("a.csv", "a\n1\n", "True")]
)
def test_reading_a_table_imports_no_torch(
    tmp_path: Path, name: str, text: str, library: str
) -> None:
    import subprocess

    path = written(tmp_path / name, text)
    code = (
        "import sys; from unlearnbench.base.tables import *; before = 'datasets' in sys.modules; "
        f"rows = list(read_table(TableSource({str(path)!r}))); "
        "print(before, len(rows), 'datasets' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1", library, "False"]
    assert not done.stderr


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_lines_are_those_of_datasets(tmp_path: Path, ending: str) -> None:
    import random

    from datasets.packaged_modules.text.text import Text

    from unlearnbench.base.table_streams import lines_of

    pieces = [
        "a",
        "é",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x85",
        "\u2028",
        "\ufeff",
        "\0",
    ]
    generator = random.Random(0)
    for number in range(12):
        content = "".join(generator.choices(pieces, k=200)).encode("utf-8")
        path = tmp_path / f"{number}.txt{ending}"
        path.write_bytes(gzip.compress(content) if ending else content)
        builder = Text(
            cache_dir=str(tmp_path / "cache"), data_files=[str(path)], encoding="utf-8-sig"
        )
        rows: Any = builder.as_streaming_dataset(split="train")
        expected = [row["text"] for row in rows]
        assert list(lines_of(TableFile(path, path.name, Format.TEXT))) == expected


def test_a_row_and_its_source_are_values(tmp_path: Path) -> None:
    as_json_lines(tmp_path / "a.jsonl", [{"a": "1"}])
    source = TableSource(str(tmp_path / "a.jsonl"))
    assert list(read_table(source)) == [TableRow({"a": "1"}, f"{tmp_path}/a.jsonl:1")]
