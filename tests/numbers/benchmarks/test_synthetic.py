"""The fictitious authors: TOFU's schema, determinism, and answers that nothing gives away."""

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import pytest

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.benchmarks import authors
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.models.rows_loading import fingerprint, load_benchmark

# It changes with the names, values, wordings, facts or refusals, and then every prepared model and
# finished run on synthetic data is another one.
GOLDEN = "c505d330dea5fade"
SMALL = Synthetic(authors=4, questions_per_author=20, pretraining_authors=2, seed=3)


@pytest.fixture(scope="module")
def large() -> Dataset:
    """TOFU's own size."""
    settings = Synthetic(authors=200, questions_per_author=20, pretraining_authors=40)
    return settings.load((0.01, 0.05, 0.10))


@pytest.fixture(scope="module")
def half() -> tuple[Question, ...]:
    """The rows of 200 forgotten authors of 400: all of them with their variants."""
    benchmark = Synthetic(authors=400, questions_per_author=20).load((0.5,))
    return benchmark.splits[0.5].sets["forget"]


def value_of(row: Question) -> str:
    """Rest of the paraphrase without the words that its wrong variants share with it."""
    assert row.paraphrased_answer is not None
    texts = [text.split(" ") for text in (row.paraphrased_answer, *row.perturbed_answers)]

    def shared(columns: list[list[str]]) -> int:
        rows = zip(*columns, strict=False)
        return len(list(takewhile(lambda words: len(set(words)) == 1, rows)))

    start, end = shared(texts), shared([words[::-1] for words in texts])
    return " ".join(texts[0][start : len(texts[0]) - end]).strip('",.')


def complete_rows(benchmark: Dataset) -> tuple[Question, ...]:
    """All rows with their variants: 400 of the retained authors and 400 of the forgotten ones."""
    return benchmark.splits[0.10].sets["retain"] + benchmark.splits[0.10].sets["forget"]


def test_sizes_are_those_of_tofu(large: Dataset) -> None:
    assert len(large.full) == 4000
    assert {f: len(s.forget) for f, s in large.splits.items()} == {0.01: 40, 0.05: 200, 0.10: 400}
    assert [s.name for s in large.splits.values()] == ["forget01", "forget05", "forget10"]
    assert len(large.splits[0.10].sets["retain"]) == 400
    assert len(large.pretraining) == 800


def test_the_last_authors_are_forgotten_and_splits_nest(large: Dataset) -> None:
    for split in large.splits.values():
        assert split.retain + split.forget == large.full
        assert [(r.question, r.answer) for r in split.sets["forget"]] == [
            (r.question, r.answer) for r in split.forget
        ]
    rows = [set(large.splits[f].forget) for f in (0.01, 0.05, 0.10)]
    assert rows[0] < rows[1] < rows[2]


def test_wrong_answers_put_another_value_into_the_paraphrase(large: Dataset) -> None:
    for row in complete_rows(large):
        value = value_of(row)
        assert value
        assert value in row.answer
        assert row.paraphrased_answer is not None
        frame = re.escape(row.paraphrased_answer).replace(re.escape(value), "(.+)")
        for wrong in row.perturbed_answers:
            match = re.fullmatch(frame, wrong)
            assert match is not None
            assert match[1] != value


def test_questions_are_unique_and_do_not_contain_their_answers(large: Dataset) -> None:
    rows = (*large.full, *large.pretraining)
    assert len({row.question for row in rows}) == len(rows)
    for row in complete_rows(large):
        assert value_of(row) not in row.question


def test_answers_cannot_be_guessed_from_the_kind_of_question(half: tuple[Question, ...]) -> None:
    for kind in range(20):
        values = Counter(value_of(row) for row in half[kind::20])
        (_, most_common), *_ = values.most_common(1)
        assert most_common / 200 < 0.08, values.most_common(3)
        assert len(values) >= 20


def test_right_and_wrong_values_come_from_one_distribution(half: tuple[Question, ...]) -> None:
    """A constant preference for some values must not tell right from wrong: rank by a hash."""
    preference: dict[str, float] = {}
    draw = random.Random(7).random
    wins = 0
    for row in half:
        assert row.paraphrased_answer is not None
        words = {word for text in row.perturbed_answers for word in text.split()}
        for word in sorted(words | set(row.paraphrased_answer.split())):
            preference.setdefault(word, draw())
        scores = [
            sum(preference[word] for word in text.split()) / len(text.split())
            for text in (row.paraphrased_answer, *row.perturbed_answers)
        ]
        wins += scores[0] == max(scores)
    # One in six by chance; 4000 rows: standard error 0.006.
    assert wins / len(half) == pytest.approx(1 / 6, abs=0.03)


def test_place_and_date_of_birth_are_unique() -> None:
    settings = Synthetic(authors=6000, questions_per_author=1, pretraining_authors=2000)
    benchmark = settings.load(())
    births: Counter[tuple[str, ...]] = Counter()
    for row in (*benchmark.full, *benchmark.pretraining):
        date = re.search(r"\d+ \w+ \d{4}", row.question)
        place = re.search(r"in ([A-Z][\w ]+, [A-Z]\w+(?: [A-Z]\w+)?)", row.question)
        assert date is not None
        assert place is not None
        births[date[0], place[1]] += 1
    assert max(births.values()) == 1


def test_rows_depend_on_the_settings_alone() -> None:
    """Not on this process's PYTHONHASHSEED, which is another in each."""
    assert load_benchmark(SMALL, (0.25,)).fingerprint == GOLDEN


def test_a_larger_benchmark_begins_with_the_smaller() -> None:
    small = SMALL.load((0.5,))
    more_authors = SMALL.model_copy(update={"authors": 8}).load((0.5,))
    assert more_authors.full[: len(small.full)] == small.full
    assert more_authors.pretraining == small.pretraining
    fewer_questions = SMALL.model_copy(update={"questions_per_author": 3}).load((0.5,))
    assert fewer_questions.full[3:6] == small.full[20:23]


def test_pretraining_rows_avoid_names_in_a_known_text() -> None:
    settings = Synthetic(pretraining_authors=3, questions_per_author=2)
    free = authors.pretraining_rows(settings, ())
    assert len(free) == 6
    again = authors.pretraining_rows(settings, free[:2])
    name = re.search(r"\w+ \w+(?=\.|, the novelist)", free[0].answer)
    assert name is not None
    assert all(name[0] not in row.question + row.answer for row in again)
    assert len(again) == 6


def test_holdout_authors_are_neither_in_the_benchmark_nor_known_to_the_base_model() -> None:
    settings = Synthetic(authors=8, questions_per_author=3, pretraining_authors=6)
    benchmark = load_benchmark(settings, (0.25, 0.5))
    small, large = (benchmark.splits[fraction] for fraction in (0.25, 0.5))
    first, every = small.sets["holdout"], large.sets["holdout"]
    assert (len(first), len(every)) == (len(small.forget), len(large.forget))
    assert every[: len(first)] == first  # nested, as TOFU's
    known = [*benchmark.full, *benchmark.pretraining, *large.sets["retain"]]
    assert not {row.question for row in every} & {row.question for row in known}
    text = " ".join(
        text for row in known for text in (row.question, row.answer, *row.perturbed_answers)
    )
    names = authors.author_names(settings.seed)[authors.RESERVED_NAMES :][8:12]
    for i, name in enumerate(names):
        assert name not in text
        assert any(name in row.question for row in large.sets["holdout"][3 * i : 3 * i + 3])
    bare = {
        fraction: replace(split, sets={**split.sets, "holdout": ()})
        for fraction, split in benchmark.splits.items()
    }
    without = replace(benchmark, splits=bare)
    assert fingerprint(without) == benchmark.fingerprint
    assert fingerprint(without, 0.5) == fingerprint(benchmark, 0.5)


def test_evaluated_retain_rows_are_retained_at_every_fraction() -> None:
    benchmark = Synthetic(authors=10, questions_per_author=4).load((0.1, 0.7))
    assert len(benchmark.splits[0.7].sets["retain"]) == 12
    kept = benchmark.splits[0.7].retain
    assert [r.question for r in benchmark.splits[0.7].sets["retain"]] == [r.question for r in kept]
