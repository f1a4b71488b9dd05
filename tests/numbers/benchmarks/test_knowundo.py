"""KnowUnDo's privacy rows."""

from pathlib import Path

import pytest

from tests.conftest import shared_data
from tests.made_up_benchmarks import knowundo
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.knowundo import KnowUnDo
from unlearnbench.models.rows_loading import load_benchmark


def test_a_question_has_the_answer_that_is_to_be_forgotten(tmp_path: Path) -> None:
    rows = load_benchmark(KnowUnDo.model_validate(knowundo(tmp_path)), ["privacy"])
    split = rows.splits["privacy"]
    assert [len(rows.full), len(split.forget), len(split.retain)] == [16, 4, 4]
    assert set(split.forget) < set(rows.full)
    assert {name: rows[0].answer for name, rows in split.sets.items()} == {
        "retention": "retention_val 0.",
        "unlearning": "unlearn_val 0.",
    }


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    settings = knowundo(tmp_path)
    (tmp_path / "unlearn_val.json").unlink()
    with pytest.raises(
        DataError, match=r"lacks unlearn_val\.json; take them from dataset/KnowUnDo"
    ):
        load_benchmark(KnowUnDo.model_validate(settings), ["privacy"])


def test_the_published_rows() -> None:
    rows = load_benchmark(KnowUnDo(path=str(shared_data("benchmarks/knowundo"))), ["privacy"])
    split = rows.splits["privacy"]
    assert [len(rows.full), len(split.forget), len(split.retain)] == [1059, 400, 441]
    assert {name: len(each) for name, each in split.sets.items()} == {
        "retention": 108,
        "unlearning": 110,
    }
