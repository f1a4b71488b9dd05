"""Rows of another benchmark and of a file."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.passages import Passages
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.models.rows_loading import other_rows


def test_all_training_rows_of_a_benchmark() -> None:
    """In 3 authors there is no tenth: the first split that the benchmark has is taken."""
    own = Synthetic(authors=20, pretraining_authors=1, seed=0)
    found = other_rows(own)
    assert found == own.load([0.1]).full
    assert len(other_rows(Synthetic(authors=2, pretraining_authors=1))) == 2 * 20
    assert {row.format for row in other_rows(Passages(authors=10))} == {"text"}
    assert not set(found) & set(other_rows(own.model_copy(update={"seed": 1})))


def test_passages_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("\nOne line,\nand another.\n\n \n\nA second passage – with a dash.\n\n")
    first, second = other_rows(str(path))
    assert first == Question("", "One line,\nand another.", format="text")
    assert second.answer == "A second passage – with a dash."
    assert second.place.startswith(str(path))


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"question": "Who?", "answer": "Nobody."}, {"text": "Only text."}]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert other_rows(str(path)) == (
        Question("Who?", "Nobody."),
        Question("", "Only text.", format="text"),
    )


@pytest.mark.parametrize("suffix", ["json", "csv", "parquet"])
def test_tables_of_other_formats(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{suffix}"
    rows = [{"id": "1", "question": "Who?", "answer": "007"}]
    if suffix == "json":
        path.write_text(json.dumps(rows))
    elif suffix == "csv":
        path.write_text("id,question,answer\n1,Who?,007\n")
    else:
        texts = [None, "Only text."]
        columns = {"question": ["Who?", None], "answer": ["007", None], "text": texts}
        parquet.write_table(pa.table(columns), path)
    first, *others = other_rows(str(path))
    assert (first, first.place) == (
        Question("Who?", "007"),
        f"{path}:{2 if suffix == 'csv' else 1}",
    )
    assert others == ([Question("", "Only text.", format="text")] if suffix == "parquet" else [])


def test_a_text_needs_no_suffix(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("One.\n\n\nTwo,\nand more.")
    rows = other_rows(str(tmp_path / "notes"))
    assert [row.answer for row in rows] == ["One.", "Two,\nand more."]
    assert rows[1].place == f"{tmp_path}/notes:4"


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ('{"question": "Who?"}', "{'question': 'Who?'}"),
        ('{"question": "Who?", "answer": " "}', "{'answer': ' ', 'question': 'Who?'}"),
        ('{"question": "Who?", "answer": 7}', "{'answer': 7, 'question': 'Who?'}"),
        ('{"question": "a", "text": "b"}', "{'question': 'a', 'text': 'b'}"),
        ('{"content": "a"}', "{'content': 'a'}"),
    ],
)
def test_a_row_of_another_shape_is_named(row: str, got: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "One."}}\n{row}\n')
    with pytest.raises(DataError) as caught:
        other_rows(str(path))
    assert str(caught.value) == (
        f"{path}:2: expected `question` and `answer`, or `text` without them, as texts that are "
        f"not blank, got {got}"
    )


def test_a_file_without_rows_or_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(DataError, match=r"empty\.txt: no rows; write passages with a blank line"):
        other_rows(str(tmp_path / "empty.txt"))
    with pytest.raises(DataError, match=r"emty: no such file or folder"):
        other_rows(str(tmp_path / "emty"))
