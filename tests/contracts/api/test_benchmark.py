"""Headline numbers of a benchmark: names, direction, rules."""

import pytest

from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.benchmarks.tofu_metrics import HEADLINE

KEPT = HeadlineMetric("rouge_retain", "ROUGE-L, retain", "ROUGE-L")
FORGOTTEN = HeadlineMetric(
    "extraction_strength_forget", "Extraction strength, forget", "ES", better="lower"
)


def test_larger_is_better_once_a_value_is_oriented() -> None:
    assert KEPT.oriented(0.25) == 0.25
    assert FORGOTTEN.oriented(0.25) == -0.25
    assert FORGOTTEN.oriented(FORGOTTEN.oriented(0.25)) == 0.25
    assert (KEPT.best_word, FORGOTTEN.best_word) == ("highest", "lowest")


def test_sentences_name_the_test_and_terminals_have_no_subscripts() -> None:
    quality = HEADLINE.forgotten
    assert quality.name == "Forget Quality"
    assert (quality.plain_label, quality.plain_short) == ("log10 Forget Quality", "log10 FQ")
    assert FORGOTTEN.name == FORGOTTEN.plain_label == "Extraction strength, forget"


def test_what_is_kept_is_better_where_higher() -> None:
    with pytest.raises(ValueError, match="extraction_strength_forget is better where lower"):
        Headline(kept=FORGOTTEN, forgotten=KEPT)
