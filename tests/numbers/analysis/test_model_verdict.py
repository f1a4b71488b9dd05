"""The verdict on one model: sentences, and intervals over questions."""

from dataclasses import replace

import numpy as np

from unlearnbench.analysis.model_verdict import ModelVerdict, percentiles
from unlearnbench.analysis.text import model_sentences
from unlearnbench.api.observations import SETS, Evaluation, FloatArray, SetEvaluation
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.stats.roc import auc_score_interval

N = 40
BENCHMARK = benchmark_named("tofu")


def answers(probability: FloatArray, ratio: float = 0.3) -> SetEvaluation:
    """A set whose answers have these probabilities, and truth ratios that vary about this one."""
    n = len(probability)
    ones, words = np.ones(n, dtype=np.int64), tuple(f"Who is author {i}?" for i in range(n))
    spread = np.exp(np.random.default_rng(1).normal(0, 0.3, n))
    loss = -np.log(probability)
    base = 5.0 - np.log(ratio * spread)
    return SetEvaluation(
        *(words, words, words, loss, ones, base, ones),
        *(np.full((n, 2), 5.0), np.ones((n, 2), dtype=np.int64), probability, probability),
    )


def model(forget: float, kept: float, ratio: float = 0.3) -> Evaluation:
    """A model with these probabilities of the forget set and of the others, about the mean."""
    noise = np.random.default_rng(0).uniform(-0.05, 0.05, N)
    others = {name: answers(kept + noise, 3.0) for name in SETS if name != "forget"}
    return Evaluation(TOFU.id, {**others, "forget": answers(forget + noise, ratio)})


RETAIN, START = model(0.2, 0.8, 0.9), model(0.9, 0.8, 0.3)


def judged(
    subject: Evaluation, retain: Evaluation | None = RETAIN, start: Evaluation | None = START
) -> ModelVerdict:
    return ModelVerdict(TOFU, BENCHMARK, subject, retain, start)


def test_a_model_like_the_retain_model_is_perhaps_forgotten() -> None:
    forgotten = model_sentences(judged(model(0.2, 0.8, 0.9)))[0]
    assert forgotten.startswith(
        "Forgotten? Perhaps: Forget Quality p = 1 does not distinguish it from the retain model "
        "(D = 0). With 40 forget questions, Forget Quality distinguishes a model"
    )
    assert "only if D is at least 0.325" in forgotten
    # Equal differences leave a share of 1 - 0.025^(1/40) of all questions open.
    assert "difference +0.000 [-0.088, +0.088], no difference beyond chance" in forgotten


def test_the_start_model_is_not_forgotten_and_keeps_everything() -> None:
    forgotten, kept = model_sentences(judged(START))
    assert forgotten.startswith("Forgotten? No: Forget Quality p = ")
    assert "Probability, forget: 0.904, the retain model's 0.204" in forgotten
    # By 0.0881 × 1.7 down to a difference of -1, and by 0.0881 × 0.3 up to one of 1.
    assert "difference +0.700 [+0.550, +0.726], more is memorised than there." in forgotten
    assert "which is 100 % [100, 100 %] of the start model's." in kept


def test_the_kept_share_is_resampled_by_the_same_questions() -> None:
    found = judged(model(0.2, 0.4, 0.9))
    low, high = found.intervals["kept_share"]
    utility = found.intervals["model_utility"]
    assert low < high < 0.9
    assert high - low < (utility[1] - utility[0]) / 0.6, "paired: narrower than either alone"


def test_privacy_is_by_the_attack_that_is_farthest_off() -> None:
    noise = np.random.default_rng(2).uniform(-0.05, 0.05, N)
    unseen = {"holdout": answers(0.2 + noise)}
    start, retain = (replace(one, sets={**one.sets, **unseen}) for one in (START, RETAIN))
    private = model_sentences(judged(start, retain))[1]
    assert private.startswith("Private? No: of all membership attacks ")
    low, high = auc_score_interval(1.0, N, N)  # a bootstrap draws nothing but 1
    assert f"AUC 1.00 [{low:.2f}, {high:.2f}]; the aim is 0." in private
    assert model_sentences(judged(retain, retain))[1].startswith("Private? Perhaps: ")
    assert "½, chance" in model_sentences(judged(start, None))[0]


def test_a_number_that_some_resamples_leave_undefined_has_no_interval() -> None:
    drawn = np.array([0.1, 0.2, np.nan, 0.4])
    assert percentiles(drawn) is None
    assert percentiles(drawn[:2]) is not None


def test_two_questions_show_nothing_beyond_chance() -> None:
    few = {name: answers(np.array([0.9, 0.9])) for name in SETS}
    known = {name: answers(np.array([0.2, 0.2])) for name in SETS}
    verdict = judged(Evaluation(TOFU.id, few), Evaluation(TOFU.id, known))
    low, high = verdict.intervals["rouge_forget"]
    unseen = 1 - 0.025**0.5
    assert (low, high) == (0.9 - unseen * 0.9, 0.9 + unseen * (1 - 0.9))
    # Resamples of two questions say nothing about others.
    assert "model_utility" not in verdict.intervals
    assert "no difference beyond chance" in model_sentences(verdict)[0]
