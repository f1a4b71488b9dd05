"""Rows of another benchmark and of a file."""

import json
from pathlib import Path

from unlearnbench.api.benchmark import Question
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
