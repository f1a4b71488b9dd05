"""The passages: text to train on, questions in other words, authors apart, rows by the seed."""

import pytest

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.benchmarks.passages import Passages
from unlearnbench.models.rows_loading import load_benchmark

# It changes with the names, values and wordings, and then every prepared model and finished run on
# passages is another one.
GOLDEN = "f9350d7819613a11"
SMALL = Passages(authors=6, chapters=2, sentences=3, pretraining_authors=2, seed=3)
SIZES = {0.5: 3, 1 / 6: 1}


@pytest.fixture(scope="module")
def small() -> Dataset:
    return load_benchmark(SMALL, tuple(SIZES))


def text_of(row: Question) -> str:
    return row.question + row.answer


def test_training_rows_are_plain_text(small: Dataset) -> None:
    for row in small.full:
        assert row == Question("", row.answer, format="text")
    assert len(small.full) == 6 * 2 * (1 + 3 * 2), "a chapter, and its facts in two wordings"
    chapter, *exchanges = (row.answer for row in small.full[:7])
    assert chapter.count(".") >= 3
    for text in exchanges:
        question, answer = text.split("\nAnswer: ")
        assert question.startswith("Question: ")
        assert answer in chapter


def test_a_tiny_model_learns_to_answer_after_examples(small: Dataset) -> None:
    assert all(row.is_plain_text for row in small.pretraining)
    assert len(small.pretraining) == 2 * 2 * 7
    text = "\n".join(row.answer for row in small.pretraining)
    others = small.facts[len(small.splits[0.5].sets["world_facts"]) :]
    assert len(others) == 2 * 6
    for row in small.facts:
        assert len(row.examples) == 2
        assert all(answer in text for _, answer in row.examples)
    for row in others:
        assert row.answer in text


@pytest.mark.parametrize(("fraction", "authors"), SIZES.items())
def test_the_last_authors_are_forgotten(small: Dataset, fraction: float, authors: int) -> None:
    split = small.splits[fraction]
    assert split.retain + split.forget == small.full
    sizes = {name: len(rows) for name, rows in split.sets.items()}
    assert sizes == {
        "retain": 3 * 6,
        "retain_text": min((6 - authors) * 14, 100),
        "world_facts": 84,
        "forget": authors * 6,
        "continuation": authors * 2,
        "forget_text": authors * 14,
        "holdout": authors * 14,
    }
    assert split.sets["forget_text"] == split.forget
    assert split.sets["retain_text"] == split.retain[:100]


def test_a_chapter_is_continued_from_its_beginning(small: Dataset) -> None:
    split = small.splits[0.5]
    texts = {row.answer for row in split.forget}
    for row in split.sets["continuation"]:
        assert text_of(row) in texts
        assert row.question.endswith((".", '".'))
        assert row.answer.startswith(" ")
        assert row.max_new_tokens


def test_questions_are_worded_as_in_no_passage(small: Dataset) -> None:
    split = small.splits[0.5]
    text = "\n".join(row.answer for row in small.full)
    for name, rows in (("forget", split.forget), ("retain", split.retain)):
        texts = "\n".join(row.answer for row in rows)
        for row in split.sets[name]:
            assert row.question not in text
            assert row.paraphrased_question
            assert row.paraphrased_question not in text
            assert row.answer in texts, "the fact itself is there"
            assert len(row.examples) == 2
            assert names_in(tuple(Question(*one) for one in row.examples)) <= names_in(
                small.pretraining
            )


def names_in(rows: tuple[Question, ...]) -> set[str]:
    """Full names of authors in these rows."""
    from unlearnbench.benchmarks.authors import author_names

    text = "\n".join(text_of(row) for row in rows)
    return {name for name in author_names(SMALL.seed) if name in text}


def test_authors_of_different_sets_are_different(small: Dataset) -> None:
    split = small.splits[0.5]
    parts = (split.forget, split.retain, split.sets["holdout"], small.pretraining)
    found = [names_in(rows) for rows in parts]
    assert [len(one) for one in found] == [3, 3, 3, 2]
    assert len(set.union(*found)) == 11


def test_rows_depend_on_seed_and_settings_alone(small: Dataset) -> None:
    assert small.fingerprint == GOLDEN
    assert load_benchmark(SMALL, tuple(SIZES)) == small
    other = load_benchmark(SMALL.model_copy(update={"seed": 4}), (0.5,))
    assert not {*other.full} & {*small.full}
    larger = load_benchmark(SMALL.model_copy(update={"authors": 8}), (0.5,))
    assert larger.full[: len(small.full)] == small.full
    assert larger.pretraining == small.pretraining
    assert larger.splits[0.5].sets["forget"][0].examples == (
        small.splits[0.5].sets["forget"][0].examples
    )
