"""KnowUnDo's privacy rows."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_data
from tests.made_up_benchmarks import knowundo
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.knowundo import KnowUnDo
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES


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


def test_an_empty_line_divides_question_and_answer(tmp_path: Path, tokenizer: Any) -> None:
    """zjunlp/KnowUnDo@92aea2b:llm_unlearn/utils: all behind the question's tokens is scored."""
    benchmark = KnowUnDo.model_validate(knowundo(tmp_path))
    rows = load_benchmark(benchmark, ["privacy"]).splits["privacy"].sets["unlearning"]
    encoder = Encoder(tokenizer, TEMPLATES["llama-2"], 500)
    draws = random.Random(0)
    for row in rows:
        encoded = encoder.row(row)
        whole = tokenizer(f"{row.question}\n\n{row.answer}")["input_ids"]
        assert list(encoded.ids) == [*whole, tokenizer.eos_token_id]
        assert encoded.start == len(tokenizer(row.question)["input_ids"])
        assert encoder.reference(encoded, row) == row.answer
        assert row.max_length == 256
        refusal = encoder.row(row, row.continuation(draws.choice(["No.", "I do not know."])))
        assert tokenizer.decode(list(refusal.ids)).startswith(f"<s>{row.question}\n\n")


def test_rows_may_stand_in_a_template(tmp_path: Path) -> None:
    benchmark = KnowUnDo.model_validate(knowundo(tmp_path) | {"format": "chat"})
    row = load_benchmark(benchmark, ["privacy"]).splits["privacy"].forget[0]
    assert (row.format, row.tag, row.max_length) == ("chat", "", None)
    assert row.answer == "unlearn_train 0."
