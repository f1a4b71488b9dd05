"""The worst of several prompts, question by question."""

import math

import pytest

from unlearnbench.stats.worst_case import worst_case

PLAIN = {"a": 0.1, "b": 0.5, "c": 0.0}
PARAPHRASE = {"a": 0.4, "c": 0.2}  # b has none
PREFIX = {"c": 0.9, "a": 0.2, "b": 0.3}  # in another order


def test_each_question_counts_with_its_worst_value() -> None:
    every = {"plain": PLAIN, "paraphrase": PARAPHRASE, "prefix": PREFIX}
    assert worst_case(every) == pytest.approx((0.4 + 0.5 + 0.9) / 3)
    assert worst_case(every, knows="lower") == pytest.approx((0.1 + 0.3 + 0.0) / 3)


def test_an_undefined_value_leaves_the_mean_undefined() -> None:
    assert worst_case({"plain": PLAIN, "prefix": {**PREFIX, "b": math.nan}}) is None
    assert worst_case({}) is None
