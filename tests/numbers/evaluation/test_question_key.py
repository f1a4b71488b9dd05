"""Metrics on paraphrased questions: another profile, of the same answers."""

from dataclasses import replace

import pytest

from unlearnbench.api.observations import SetName
from unlearnbench.base.errors import EvaluationError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import (
    TOFU,
    get_profile,
    profile_named,
    profile_of_id,
)
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.rows_loading import load_benchmark

PARAPHRASED = get_profile("tofu", question_key="paraphrased_question")
DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)


def test_the_override_shows_in_the_id_which_can_be_read_back() -> None:
    assert PARAPHRASED.id.startswith("tofu+question_key=paraphrased_question@")
    assert PARAPHRASED.hash != TOFU.hash
    assert profile_of_id(PARAPHRASED.id) == PARAPHRASED
    assert profile_named("tofu+rows=5+question_key=paraphrased_question").rows == 5
    assert get_profile("tofu", question_key="question") is TOFU
    for name in ("tofu+rows=0", "tofu+template=chat", "tofu+rows", "tofu+question_key=x"):
        with pytest.raises(EvaluationError):
            profile_named(name)


def test_forget_and_retain_are_asked_in_other_words_and_facts_as_ever() -> None:
    benchmark = load_benchmark(DATA, (0.25,))
    plain = evaluation_sets(benchmark, 0.25, TOFU)
    found = evaluation_sets(benchmark, 0.25, PARAPHRASED)
    paraphrased: tuple[SetName, ...] = ("retain", "forget")
    same: tuple[SetName, ...] = ("real_authors", "world_facts", "holdout")
    for name in paraphrased:
        assert [q.question for q in found[name]] == [q.paraphrased_question for q in plain[name]]
        assert [q.paraphrased_question for q in found[name]] == [q.question for q in plain[name]]
        assert [q.scored_answers for q in found[name]] == [q.scored_answers for q in plain[name]]
    for name in same:
        assert found[name] == plain[name] != ()
    assert list(found) == ["retain", "forget", *same]
    few = evaluation_sets(benchmark, 0.25, get_profile("tofu", rows=1))
    assert [len(rows) for rows in few.values()] == [1] * 5
    split = benchmark.splits[0.25]
    without = replace(split, sets={**split.sets, "holdout": ()})
    bare = replace(benchmark, splits={0.25: without})
    assert "holdout" not in evaluation_sets(bare, 0.25, PARAPHRASED)
