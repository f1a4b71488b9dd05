"""TOFU's metrics from an evaluation's per-question values: pure arithmetic, no model.

Unusual: ratios are taken between logarithms, so that a collapsed model whose probabilities
underflow still has numbers; the KS p-value is a quotient of whole numbers, so that its logarithm
stays exact where the p-value itself is 0; and what depends on a NaN is None, never a crash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.profiles import Profile, profile_of_id
from unlearnbench.evaluation.result import Evaluation, FloatArray, SetEvaluation, SetName

SUMMARY_SETS: tuple[SetName, ...] = ("retain", "real_authors", "world_facts", "forget")
"""The sets in the order of `summarize`; the first three make Model Utility."""


class SetMetrics(NamedTuple):
    """The three numbers of one set, each in [0, 1]; None where undefined."""

    probability: float | None
    rouge: float | None
    truth_ratio: float | None


@dataclass(frozen=True)
class ForgetQuality:
    """Two-sample Kolmogorov-Smirnov test between the truth ratios of two models."""

    p_value: float
    """Chance of a statistic at least as large if both came from one distribution; may be 0.0."""
    log10_p: float
    """Finite also where `p_value` underflows."""
    statistic: float
    """D, the largest distance of the two empirical distribution functions."""
    n: int
    """Questions of each model; p-values of different n do not compare."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What the metrics of one set are computed from, by question: numbers only, no text."""

    probability: FloatArray
    """[n] of the true answer; of true facts, among their options."""
    rouge: FloatArray
    """[n] ROUGE-L recall."""
    truth_ratio: FloatArray
    """[n] R, as in `truth_ratios`."""


def scores(set_name: SetName, evaluation: SetEvaluation, profile: Profile) -> Scores:
    """Of each of the n questions of one set.

    probability  retain, forget: P(answer);  real_authors, world_facts: P(answer) / Σ_options P
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        if set_name in ("real_authors", "world_facts"):
            probability = _probability_among_options(evaluation, profile.options_epsilon)
        else:
            probability = np.exp(-evaluation.answer_loss)
        ratios = truth_ratios(evaluation, profile)
    return Scores(probability, evaluation.rouge_l_recall, ratios)


def set_metrics(set_name: SetName, evaluation: SetEvaluation, profile: Profile) -> SetMetrics:
    """Probability, ROUGE-L recall and truth ratio of one set, each a mean over its n questions."""
    return set_means(set_name, scores(set_name, evaluation, profile), profile)


def set_means(set_name: SetName, of: Scores, profile: Profile) -> SetMetrics:
    """The three metrics of one set.

    probability  mean of `scores`
    truth ratio  forget: min(R, 1/R), best where true and false are equally likely;
                 others: max(0, 1 - 1/R), best where the true answer is the likelier

    P is a probability per token, exp(-loss); R as in `truth_ratios`. A positive epsilon ε of the
    profile changes 1/(1/R) to 1/(1/R + ε). Maini et al. 2024, arXiv:2401.06121, section 2.2.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # 1/R, false over true, is what both rules are written in: with ε they differ otherwise.
        false_over_true = 1 / of.truth_ratio
        if set_name == "forget":
            true_over_false = 1 / (false_over_true + profile.truth_ratio_epsilon)
            truth_ratio = np.minimum(false_over_true, true_over_false)
        else:
            truth_ratio = np.maximum(0, 1 - false_over_true)
    return SetMetrics(_mean(of.probability), _mean(of.rouge), _mean(truth_ratio))


def truth_ratios(evaluation: SetEvaluation, profile: Profile) -> FloatArray:
    """[n] R = (P(base) + ε) / mean_j P(perturbed_j): above 1 the true answer is the likelier.

    base  paraphrased answer of retain and forget, the answer itself of the true facts
    mean  geometric or arithmetic over the k perturbed answers, as the profile says

    The paper's R_truth is 1/R; TOFU's aggregation and the KS test do not mind which.
    """
    if profile.perturbed_mean == "geometric":
        log_perturbed = -evaluation.perturbed_loss.mean(axis=1)  # [n]
    else:
        k = evaluation.perturbed_loss.shape[1]
        log_perturbed = np.logaddexp.reduce(-evaluation.perturbed_loss, axis=1) - math.log(k)
    log_base = -evaluation.base_loss  # [n]
    if profile.truth_ratio_epsilon > 0:
        log_base = np.logaddexp(log_base, math.log(profile.truth_ratio_epsilon))
    with np.errstate(over="ignore", invalid="ignore"):
        ratios: FloatArray = np.exp(log_base - log_perturbed)
    return ratios


def forget_ratios(evaluation: Evaluation) -> FloatArray:
    """[n] truth ratios of the forget set, by the evaluation's own profile.

    Raises: EvaluationError where this version does not know the profile.
    """
    return truth_ratios(evaluation.sets["forget"], profile_of_id(evaluation.profile))


def _probability_among_options(evaluation: SetEvaluation, epsilon: float) -> FloatArray:
    """[n] P(answer) / (P(answer) + Σ_j P(wrong_j) + ε)."""
    # Over the likeliest option: four probabilities that all underflow still have a ratio.
    likeliest = np.minimum(evaluation.answer_loss, evaluation.perturbed_loss.min(axis=1))  # [n]
    answer = np.exp(likeliest - evaluation.answer_loss)
    wrong = np.exp(likeliest[:, None] - evaluation.perturbed_loss).sum(axis=1)
    floor = epsilon * np.exp(likeliest) if epsilon > 0 else 0.0
    probability: FloatArray = answer / (answer + wrong + floor)
    return probability


def _mean(values: FloatArray) -> float | None:
    """None where a value is not a number, or there is none."""
    if values.size == 0 or not np.isfinite(values).all():
        return None
    return float(values.mean())


def model_utility(metrics: Iterable[float | None]) -> float | None:
    """Harmonic mean of the nine metrics of retain set, real authors and world facts.

    0 as soon as one of them is 0: a model without one ability is of no use.
    """
    values: list[float] = []
    for value in metrics:
        if value is None or math.isnan(value):
            return None
        values.append(value)
    if not values:
        return None
    return 0.0 if min(values) <= 0 else len(values) / sum(1 / value for value in values)


def forget_quality(unlearned: FloatArray, retain: FloatArray) -> ForgetQuality | None:
    """KS test between two models' truth ratios [n] on the forget set; None if one is NaN.

    unlearned  R of the model that was to forget
    retain     R of a model that never saw the forget set
    """
    n = len(unlearned)
    if n != len(retain):
        raise EvaluationError(
            f"Forget Quality: the model has {n} forget questions and the retain model "
            f"{len(retain)}; the p-value needs the same questions on both sides: evaluate both "
            "on the same forget split with the same number of rows"
        )
    if n == 0 or np.isnan(unlearned).any() or np.isnan(retain).any():
        return None
    points = np.concatenate([unlearned, retain])
    below_unlearned = np.searchsorted(np.sort(unlearned), points, side="right")
    below_retain = np.searchsorted(np.sort(retain), points, side="right")
    # Counts, not frequencies: n·D is a whole number and must not come from a rounded quotient.
    distance = int(np.abs(below_unlearned - below_retain).max())
    numerator, denominator = exact_p_value(n, distance)
    return ForgetQuality(
        p_value=numerator / denominator,
        log10_p=_log10_of_quotient(numerator, denominator),
        statistic=distance / n,
        n=n,
    )


@lru_cache(maxsize=4096)  # a sweep has few n, and not many more distances
def exact_p_value(n: int, distance: int) -> tuple[int, int]:
    """P(n·D ≥ h) for two samples of n from one distribution, as numerator and denominator.

    p = 2 · Σ_{k≥1} (-1)^{k-1} · C(2n, n - k·h) / C(2n, n)

    h = `distance` in questions; Gnedenko and Korolyuk 1951: lattice paths that leave a strip.
    """
    paths = math.comb(2 * n, n)
    if distance == 0:
        return paths, paths
    outside = 0
    sign = 1
    for reach in range(distance, n + 1, distance):
        term = math.comb(2 * n, n - reach)
        outside += sign * term
        sign = -sign
        # Terms fall and alternate, so the rest is below this one: 2^-80 is far below rounding.
        if term << 80 < outside:
            break
    return 2 * outside, paths


def _log10_of_quotient(numerator: int, denominator: int) -> float:
    """log10(numerator / denominator) of whole numbers too large or too far apart for floats."""
    shift = denominator.bit_length() - numerator.bit_length()
    near_one = (numerator << shift) / denominator
    return math.log10(near_one) - shift * math.log10(2)


def summarize(
    evaluation: Evaluation, retain: Evaluation | None, profile: Profile
) -> dict[str, float | None]:
    """All metrics of an evaluation, by the columns of `results.csv`.

    Forget Quality and its companions need the retain model's evaluation; without it, and
    wherever a value is not a number, the metric is None.
    """
    _check_same_profile("the evaluation", evaluation.profile, "it is summarised by", profile.id)
    if retain is not None:
        _check_same_profile(
            "the evaluation", evaluation.profile, "the retain model's", retain.profile
        )
        check_precision("the model", evaluation.precision, "the retain model", retain.precision)
        _check_same_questions(evaluation.sets["forget"].questions, retain.sets["forget"].questions)
    return summary(
        {name: scores(name, evaluation.sets[name], profile) for name in SUMMARY_SETS},
        None if retain is None else truth_ratios(retain.sets["forget"], profile),
        profile,
    )


def summary(
    of: Mapping[SetName, Scores], retain: FloatArray | None, profile: Profile
) -> dict[str, float | None]:
    """What `summarize` returns, from the scores of all four sets.

    retain  [n] truth ratios of the retain model on the forget set
    """
    quality = None if retain is None else forget_quality(of["forget"].truth_ratio, retain)
    by_set = {name: set_means(name, of[name], profile) for name in SUMMARY_SETS}
    found: dict[str, float | None] = {
        "model_utility": model_utility(
            value for name in SUMMARY_SETS if name != "forget" for value in by_set[name]
        ),
        "forget_quality": None if quality is None else quality.p_value,
        "log10_forget_quality": None if quality is None else quality.log10_p,
        "ks_statistic": None if quality is None else quality.statistic,
        "ks_n": None if quality is None else quality.n,
    }
    for name, metrics in by_set.items():
        found[f"rouge_{name}"] = metrics.rouge
        found[f"probability_{name}"] = metrics.probability
        found[f"truth_ratio_{name}"] = metrics.truth_ratio
    return found


def _check_same_profile(first: str, profile: str, second: str, other: str) -> None:
    if profile != other:
        raise EvaluationError(
            f"{first} is by profile {profile:.80}, {second} {other:.80}: numbers of different "
            "profiles do not compare; evaluate both by the same one"
        )


def first_difference(questions: Sequence[str], others: Sequence[str]) -> int | None:
    """Position of the first question that is another one, as far as both lists go; None without.

    Other tokenizers may have left other white space.
    """
    pairs = enumerate(zip(questions, others, strict=False))
    return next((i for i, (one, other) in pairs if one.split() != other.split()), None)


def _check_same_questions(questions: Sequence[str], retain: Sequence[str]) -> None:
    """As far as both are known; unequal numbers are `forget_quality`'s to refuse."""
    i = first_difference(questions, retain)
    if i is not None:
        raise EvaluationError(
            f"Forget Quality: forget question {i} is {questions[i][:60]!r} for the model and "
            f"{retain[i][:60]!r} for the retain model; the p-value needs the same questions on "
            "both sides: evaluate both on the same forget split"
        )
