"""Scores of membership inference attacks by hand, and their areas."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.metrics.mia_loss import LossAttack
from unlearnbench.metrics.mia_min_k import MinK
from unlearnbench.metrics.mia_min_k_plus_plus import MinKPlusPlus
from unlearnbench.metrics.mia_reference import ReferenceAttack
from unlearnbench.metrics.mia_zlib import ZlibAttack

from .conftest import Observe

LOSSES = [[1.0, 5.0, 2.0, 3.0, 4.0, 9.0], [7.0, 1.0]]  # EOS last


def test_scores_by_hand(observe: Observe) -> None:
    seen = observe(LOSSES)
    assert LossAttack().scores(seen).tolist() == [4.0, 4.0]
    bytes_ = [len(zlib.compress(text.encode())) for text in seen.references]
    assert ZlibAttack().scores(seen) == pytest.approx(np.array([4.0, 4.0]) / bytes_)
    assert MinK().scores(seen) == pytest.approx([4.5, 7.0])  # 2 of 5, 0.4 of 1 is at least one
    assert MinK(share=1).scores(seen) == pytest.approx([3.0, 7.0])


def test_min_k_plus_plus_normalises_by_the_distribution(observe: Observe) -> None:
    seen = observe(LOSSES)
    assert MinKPlusPlus().scores(seen) is None, "no moments"
    mean, variance = np.full(8, -2.0, np.float32), np.full(8, 4.0, np.float32)
    tokens = replace(seen.tokens, mean_logprob=mean, logprob_variance=variance)
    seen = replace(seen, token_columns=tokens)
    # z = (-loss + 2) / 2; of the first answer the two smallest are those of losses 5 and 4
    assert MinKPlusPlus().scores(seen) == pytest.approx([1.25, 2.5])
    tokens = replace(tokens, logprob_variance=np.zeros(8, np.float32))
    sharp = MinKPlusPlus().scores(replace(seen, token_columns=tokens))
    assert sharp is not None
    assert np.isfinite(sharp).all(), "the variance has a floor"


def test_an_empty_answer_has_no_score(observe: Observe) -> None:
    seen = observe([[2.0], [1.0, 2.0]])
    found = MinK().scores(seen)
    assert found is not None
    assert np.isnan(found[0])
    sets = {"forget": seen, "holdout": observe(LOSSES)}
    values = MinK().compute(MetricInputs(EvaluatedModel(sets)))
    assert values == {"mia_min_k": None, "mia_min_k_tpr": None}


def test_areas_of_members_and_of_none(observe: Observe) -> None:
    known, unknown = observe([[0.1, 0.1], [0.2, 0.1]]), observe([[3.0, 3.0], [4.0, 3.0]])
    sets = {"forget": known, "holdout": unknown}
    assert MinK().compute(MetricInputs(EvaluatedModel(sets))) == {
        "mia_min_k": 1.0,
        "mia_min_k_tpr": 1.0,
    }
    assert not MinK().compute(MetricInputs(EvaluatedModel({"forget": known})))
    same = EvaluatedModel({"forget": known, "holdout": known})
    assert LossAttack().compute(MetricInputs(same)) == {"mia_loss": 0.5, "mia_loss_tpr": 0.0}


def test_an_attack_takes_the_sets_that_a_benchmark_names(observe: Observe) -> None:
    known, unknown = observe([[0.1, 0.1], [0.2, 0.1]]), observe([[3.0, 3.0], [4.0, 3.0]])
    sets = {"forget": unknown, "text": known, "kept_text": known, "holdout": unknown}
    attack = LossAttack(members="text", control="kept_text")
    found = attack.compute(MetricInputs(EvaluatedModel(sets)))
    assert found == {"mia_loss": 1.0, "mia_loss_tpr": 1.0, "mia_loss_control": 1.0}
    assert len(LossAttack(control=None).columns()) == 2


def test_the_reference_attack_needs_a_retain_model(observe: Observe) -> None:
    model = EvaluatedModel(
        {"forget": observe([[0.1, 0.1]]), "holdout": observe([[3.0, 3.0], [4.0, 3.0]])}
    )
    retain = EvaluatedModel(
        {"forget": observe([[3.5, 3.5]]), "holdout": observe([[3.0, 3.0], [4.0, 3.0]])}
    )
    assert not ReferenceAttack().compute(MetricInputs(model))
    # All differences of the retain model are 0, whether its evaluation was read once or twice.
    again = EvaluatedModel(dict(retain.sets))
    tied = {"mia_reference": 0.5, "mia_reference_tpr": 0.0}
    assert ReferenceAttack().compute(MetricInputs(retain, retain)) == tied
    assert ReferenceAttack().compute(MetricInputs(again, retain)) == tied
    assert ReferenceAttack().compute(MetricInputs(model, retain))["mia_reference"] == 1.0
