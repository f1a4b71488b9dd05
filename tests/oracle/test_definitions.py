"""The recomputation itself, against examples of the documentation, scipy and stored tables."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp, mannwhitneyu

from tests.oracle import numbers
from tests.oracle.choices import hypervolume
from tests.oracle.claims import Claims
from tests.oracle.lasting import Pair, UnderVariant, asked_places
from tests.oracle.means import interval_of, is_better_beyond_chance, mean_of
from tests.oracle.read import Array, SetObservations, TokenObservations
from tests.oracle.texts import distinct_four_grams, rouge_l_f1, rouge_l_recall

DATA = Path(__file__).parent.parent / "data"
NO_NUMBERS = {
    *("method", "model", "forget_fraction", "learning_rate", "seed", "epoch"),
    *("kind", "status", "run_id", "hyperparameters"),
}
"""Columns of `results.csv` that are not metrics."""


def observed(count: int = 1, **columns: object) -> SetObservations:
    """Return the observations of a set, with made-up values for what is not given."""
    one = np.ones(count)
    made_up = {
        "questions": [f"question {i}" for i in range(count)],
        "generated": ["an answer"] * count,
        "references": ["an answer"] * count,
        "answer_loss": one,
        "answer_tokens": one * 4,
        "base_loss": one * 2,
        "perturbed_loss": np.ones((count, 2)),
        "perturbed_tokens": np.ones((count, 2)),
        "rouge_l_recall": one,
        "tokens": None,
        "sample_scores": None,
        "options": [],
        "answer_index": None,
        "compressed_bytes": None,
        "grad_norm": None,
        "start_loss": None,
        "token_entropy": None,
        "word_rule": "ascii",
        "places": None,
    }
    return SetObservations(**{**made_up, **columns})  # type: ignore[arg-type]


def with_hits(*hits: bool, ends: int = 0) -> SetObservations:
    """Return a set of one answer whose tokens were predicted or not."""
    tokens = TokenObservations([np.ones(len(hits))], [np.array(hits)], [ends], None, None)
    return observed(tokens=tokens)


def only(rows: Array | None) -> float:
    """Return the number of the only row."""
    assert rows is not None
    (number,) = rows
    return float(number)


@pytest.mark.parametrize(("wrong", "strength"), [(0, 0.9), (4, 0.5), (9, 0.0)])
def test_one_token_decides_about_extraction_strength(wrong: int, strength: float) -> None:
    seen = with_hits(*(place != wrong for place in range(10)))
    exact = only(numbers.exact_memorization(seen, {}))
    extracted = only(numbers.extraction_strength(seen, {}))
    floored = only(numbers.extraction_strength_ou(seen, {}))
    assert exact == pytest.approx(0.9)
    assert extracted == pytest.approx(strength)
    assert floored == pytest.approx(max(strength, 0.1))


def test_tokens_that_end_the_turn_are_no_part_of_memorization() -> None:
    strength = only(numbers.extraction_strength(with_hits(True, True, False, ends=1), {}))
    assert strength == 1


@pytest.mark.parametrize("n", [4, 9, 20])
def test_p_values_are_those_of_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(20):
        first, second = rng.normal(size=n), rng.normal(rng.normal(), size=n)
        known = ks_2samp(first, second, method="exact")
        p = float(numbers.ks_p_value(n, round(known.statistic * n)))
        assert p == pytest.approx(known.pvalue)


@pytest.mark.parametrize(("n", "log10"), [(20, -0.8), (40, -1.8), (80, -4.0), (400, -21.4)])
def test_p_values_are_those_of_the_documentation(n: int, log10: float) -> None:
    p = numbers.ks_p_value(n, round(0.35 * n))
    logarithm = math.log10(p.numerator) - math.log10(p.denominator)
    assert logarithm == pytest.approx(log10, abs=0.05)


def test_areas_are_mann_whitney_statistics() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        members, others = rng.integers(0, 6, 7) / 2, rng.integers(0, 6, 5) / 2
        statistic = mannwhitneyu(others, members).statistic
        area = numbers.area_under_curve(members, others)
        assert area == pytest.approx(statistic / 35)


def test_rouge_is_that_of_the_documentation() -> None:
    truth = "Her first novel was The Glass Harbour."
    answers = {
        "The Glass Harbour": 0.43,
        "Her first novel was The Salt Road.": 0.71,
        "Her first novel was The Salt Road, or The Glass Harbour, or The Long Winter.": 1.0,
    }
    for answer, recall in answers.items():
        assert rouge_l_recall(truth, answer) == pytest.approx(recall, abs=0.005)
    assert rouge_l_f1("a b c", "a c d e", "ascii", stems=False) == pytest.approx(2 * 2 / 7)
    assert distinct_four_grams(["a", "b", "a", "b", "a", "b"]) == pytest.approx(2 / 3)


def test_intervals_are_those_of_the_documentation() -> None:
    low, high = interval_of([-6.1, -5.2, -6.9, -5.8, -6.4]) or (math.nan, math.nan)
    assert (round(low, 2), round(high, 2)) == (-6.87, -5.29)
    assert interval_of([-6.1, -5.2]) == (-6.1, -5.2)
    assert interval_of([1.0]) is None
    assert interval_of([1.0, None, 3.0]) is None
    assert mean_of([1.0, None]) is None


def test_a_difference_is_beyond_chance_by_its_interval_over_three_seeds() -> None:
    first = {0: 1.0, 1: 1.1, 2: 1.2}
    assert is_better_beyond_chance(first, {0: 0.0, 1: 0.11, 2: 0.22})
    assert not is_better_beyond_chance(first, {0: 0.0, 1: 1.2, 2: 1.1})
    assert not is_better_beyond_chance(first, {0: 0.0, 1: 0.1})


def test_a_hypervolume_is_the_area_of_a_union() -> None:
    assert hypervolume([(1, 3), (2, 1)], (0, 0)) == 4
    assert hypervolume([(1, 3), (2, 1), (1, 1), (-1, 9)], (0, 0)) == 4
    assert hypervolume([(1, 3)], (2, 0)) == 0


def under(*pairs: Pair, retain: Pair, start: float = 0.9) -> UnderVariant:
    """Return a setting under an attack."""
    return UnderVariant(
        pairs, retain, Pair(start, None), sign=1.0, can_move=True, has_all_seeds=True
    )


def test_lasting_is_what_is_not_given_back_of_what_was_removed() -> None:
    # Of 0.8 that was removed, 0.2 comes back, of which the attack teaches anyone 0.05.
    assert under(Pair(0.1, 0.3), retain=Pair(0.1, 0.15)).score == pytest.approx(1 - 0.15 / 0.8)
    # A retain model that loses subtracts nothing.
    assert under(Pair(0.1, 0.3), retain=Pair(0.1, 0.05)).score == pytest.approx(0.75)
    # Only 0.1 of 0.8 was removed.
    little = under(Pair(0.8, 0.9), retain=Pair(0.1, 0.1))
    assert little.score is None
    assert little.removed_too_little


def test_the_interval_of_lasting_is_that_of_a_ratio_of_means() -> None:
    pairs = (Pair(0.1, 0.30), Pair(0.2, 0.35), Pair(0.15, 0.45))
    setting = under(*pairs, retain=Pair(0.1, 0.1))
    gains = [0.2, 0.15, 0.3]
    removed = [0.8, 0.7, 0.75]
    ratio = sum(gains) / sum(removed)
    residuals = [gain - ratio * part for gain, part in zip(gains, removed, strict=True)]
    half = 4.302653 * np.std(residuals, ddof=1) / math.sqrt(3) / np.mean(removed)
    assert setting.score == pytest.approx(1 - ratio)
    assert setting.interval == pytest.approx((1 - ratio - half, 1 - ratio + half))


def test_rows_are_found_again_only_if_they_can_be_told() -> None:
    whole = observed(4, questions=["a", "b", "b", "c"], references=["1", "2", "3", "4"])
    asked = observed(2, questions=["b", "c"], references=["3", "4"])
    places = asked_places(whole, asked)
    assert places is not None
    assert places.tolist() == [2, 3]
    alike = observed(4, questions=["a", "b", "b", "c"], references=["1", "2", "2", "4"])
    either = observed(2, questions=["b", "c"], references=["2", "4"])
    assert asked_places(alike, either) is None


def test_bounds_hold_for_coins_of_the_documentation() -> None:
    for count, bound in ((20 * 400, 0.0006), (20, 0.21)):
        scores = np.zeros((count // 20, 20))
        model = numbers.Model({"forget": observed(len(scores), sample_scores=scores)}, {})
        bounds = numbers.sampling_bounds(model, None, None, {})
        assert bounds["leak_rate_bound"] == pytest.approx(bound, rel=0.05)


@pytest.mark.parametrize("name", ["small_sweep", "sweep_0_2"])
def test_stored_tables_are_computed_again(name: str) -> None:
    claims = Claims.of(DATA / name)
    with (DATA / name / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len({(run, epoch) for run, epoch, _, _ in claims.numbers})
    for row in rows:
        for column in row.keys() - NO_NUMBERS:
            value = claims.numbers.get((row["run_id"], int(row["epoch"]), "", column))
            text = row[column]
            assert value == (pytest.approx(float(text)) if text else None), (row, column)
