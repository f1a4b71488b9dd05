"""Memorization by token: exact, extraction strength, and open-unlearning's with its floor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearnbench.metrics.exact_memorization import ExactMemorization
from unlearnbench.metrics.extraction_strength import ExtractionStrength
from unlearnbench.metrics.extraction_strength_ou import ExtractionStrengthOU

from .conftest import Observe, observed

METRICS = (ExactMemorization(), ExtractionStrength(), ExtractionStrengthOU())


@pytest.mark.parametrize(
    ("hits", "memorization", "strength", "floored"),
    [
        ("11111", 1, 1, 1),
        ("11110", 1, 1, 1),  # EOS does not count
        ("10111", 3 / 4, 1 / 2, 1 / 2),
        ("01111", 3 / 4, 3 / 4, 3 / 4),
        ("11101", 3 / 4, 0, 1 / 4),  # the last token is missed
        ("00000", 0, 0, 1 / 4),
        ("11", 1, 1, 1),
        ("01", 0, 0, 1),
    ],
)
def test_values_by_hand(
    observe: Observe, hits: str, memorization: float, strength: float, floored: float
) -> None:
    seen = observe(hits=[hits])
    assert [metric.per_example(seen)[0] for metric in METRICS] == [memorization, strength, floored]


def test_a_cut_answer_has_no_eos_to_leave_out(observe: Observe) -> None:
    seen = observe(hits=["1110"], ended=False)
    assert [metric.per_example(seen)[0] for metric in METRICS] == [3 / 4, 0, 1 / 4]


def test_an_answer_of_eos_alone_is_undefined(observe: Observe) -> None:
    seen = observe(hits=["1", "111"])
    exact, strength, floored = (metric.per_example(seen) for metric in METRICS)
    assert np.isnan([exact[0], strength[0]]).all()
    assert floored[0] == 0, "as open-unlearning counts it"
    assert [exact[1], strength[1], floored[1]] == [1, 1, 1]
    assert ExactMemorization().value(exact) is None


@given(st.lists(st.text("01", min_size=2, max_size=20), min_size=1, max_size=8))
def test_strength_is_at_most_the_share_of_hits_and_at_least_its_floor(hits: list[str]) -> None:
    seen = observed(hits=hits)
    exact, strength, floored = (metric.per_example(seen) for metric in METRICS)
    lengths = np.array([len(one) - 1 for one in hits])
    assert (strength <= exact + 1e-12).all()
    assert (floored >= 1 / lengths - 1e-12).all()
    assert np.allclose(floored, np.maximum(strength, 1 / lengths))
