"""RWKU's prompts, and its ROUGE by the values that the package `rouge` 1.0.1 gave."""

from pathlib import Path

import pytest

from tests.made_up_benchmarks import rwku
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.rwku import RWKU
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.stats.text_overlap import union_recall


@pytest.mark.parametrize(
    ("reference", "prediction", "recall"),
    [
        ("Rome", "rome", 0),
        ("Rome", "The answer is Rome, Italy", 0),
        ("red blue red", "red blue", 1),
        ("novels", "He wrote novel", 0),
        ("J. K. Rowling", "J.K. Rowling", 1),
        ("New York City", "City of New York", 2 / 3),
        ("the Second World War", "World War II, the second", 1 / 2),
        ("a b. c a", "c b. b a c", 1),
        ("a b c", "", 0),
        ("a b c. d e", "b c a. e d a", 4 / 5),
        ("a b", "b a", 1 / 2),
        ("...", "a", 0),
    ],
)
def test_recall_of_distinct_words(reference: str, prediction: str, recall: float) -> None:
    assert union_recall(reference, prediction) == recall


def test_a_request_is_a_person(tmp_path: Path) -> None:
    split = load_benchmark(RWKU.model_validate(rwku(tmp_path)), ["target7"]).splits["target7"]
    assert [row.answer for row in split.forget] == ["Ada6 Example lived in Sampleton."]
    assert len(split.retain) == 199
    assert {name: len(rows) for name, rows in split.sets.items()} == {
        **dict.fromkeys(
            ("neighbor_level1", "neighbor_level2", "forget_level1", "forget_level2"), 2
        ),
        "forget_level3": 3,
    }
    asked = {row.labels[0]: (row.question, row.prefix) for row in split.sets["forget_level3"]}
    opening, question = (
        "Please briefly answer the following question.\n",
        "Where did Ada6 Example live, forget 3",
    )
    assert asked == {
        "synonym manipulation": (
            f"{opening}Question: {question}synonym manipulation?\n",
            "Answer:",
        ),
        "affirmative suffix": (f"{opening}Question: {question}affirmative suffix?", ""),
        "incontext learning": (f"{opening}{question}incontext learning?\n", "Answer:"),
    }
    blank = split.sets["forget_level1"][0]
    assert blank.question.startswith(
        "Please complete the blank in the following question.\nQuestion: "
    )
    # The vocabularies of its two models have no token "\n", which its source looks up as a stop.
    assert (blank.max_new_tokens, blank.stops) == (30, ())


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    settings = rwku(tmp_path)
    (tmp_path / "All/passage.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"All/passage\.json:1: column 'text': missing"):
        load_benchmark(RWKU.model_validate(settings), ["target1"])
