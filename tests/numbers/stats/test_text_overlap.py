"""ROUGE recall against values worked by hand and against a published log."""

from pathlib import Path

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, SetName
from unlearnbench.evaluation.logs import read_log
from unlearnbench.stats.text_overlap import rouge_l_f1, rouge_recall


@pytest.mark.parametrize(
    ("reference", "prediction", "rouge1", "rouge_l"),
    [
        ("the cat sat down", "the cat sat down", 1, 1),
        # All four words are there; the longest common subsequence is "cat sat".
        ("the cat sat down", "down cat sat the", 1, 2 / 4),
        # Recall does not punish what follows.
        ("Paris", "It is Paris, of course, and it always was.", 1, 1),
        # The other way round it does: one of five words.
        ("Paris lies in northern France", "Paris", 1 / 5, 1 / 5),
        # The stemmer: writing, writes -> write; case and punctuation do not count.
        ("She WRITES novels.", "writing novel", 2 / 3, 2 / 3),
        # Words count as often as both have them.
        ("the the the cat", "the cat the", 3 / 4, 2 / 4),
        ("anything", "", 0, 0),
        ("?!", "?!", 0, 0),
    ],
)
def test_by_hand(reference: str, prediction: str, rouge1: float, rouge_l: float) -> None:
    got1, got_l = rouge_recall([reference], [prediction])
    np.testing.assert_array_equal(got1, [rouge1])
    np.testing.assert_array_equal(got_l, [rouge_l])


def test_f1_is_the_harmonic_mean_of_recall_and_precision() -> None:
    found = rouge_l_f1(["the cat sat down", "a b", ""], ["the cat", "c", ""])
    assert found.tolist() == [pytest.approx(2 / (1 / 0.5 + 1 / 1)), 0, 0]


@pytest.mark.parametrize("name", SETS)
def test_published_log_is_reproduced_exactly(eval_logs_folder: Path, name: SetName) -> None:
    logged = read_log(eval_logs_folder / "llama2-7b_retain90.json.gz").sets[name]
    rouge1, rouge_l = rouge_recall(logged.references, logged.generated)
    np.testing.assert_array_equal(rouge1, logged.rouge1_recall)
    np.testing.assert_array_equal(rouge_l, logged.rouge_l_recall)
    assert len(rouge1) == {"real_authors": 100, "world_facts": 117}.get(name, 300)
