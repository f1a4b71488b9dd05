"""The worst of several prompts, question by question."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unlearnbench.stats.worst_case import worst_case

PLAIN = {"a": 0.1, "b": 0.5, "c": 0.0}
PARAPHRASE = {"a": 0.4, "c": 0.2}  # b has none
PREFIX = {"c": 0.9, "a": 0.2, "b": 0.3}  # in another order


def test_each_question_has_its_largest_value() -> None:
    found = worst_case({"plain": PLAIN, "paraphrase": PARAPHRASE, "prefix": PREFIX})
    assert found.questions == ("a", "b", "c")
    assert found.values.tolist() == [0.4, 0.5, 0.9]
    assert found.variants == ("paraphrase", "plain", "prefix")
    assert found.mean == pytest.approx(0.6)


def test_a_metric_that_falls_with_knowledge_has_its_smallest() -> None:
    found = worst_case({"plain": PLAIN, "paraphrase": PARAPHRASE}, knows="lower")
    assert found.values.tolist() == [0.1, 0.5, 0.0]
    assert found.variants == ("plain", "plain", "plain")
    assert found.mean == pytest.approx(0.2)


def test_an_undefined_value_leaves_question_and_mean_undefined() -> None:
    found = worst_case({"plain": PLAIN, "prefix": {**PREFIX, "b": math.nan}})
    assert np.isnan(found.values).tolist() == [False, True, False]
    assert found.variants == ("prefix", "", "prefix")
    assert found.mean is None
