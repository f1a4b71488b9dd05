"""All metrics of an evaluation, and what two evaluations must have in common to be compared."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from unlearnbench.api.benchmark import Benchmark, Reference, references_with
from unlearnbench.api.metric import EvaluatedModel
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices, benchmark_plan
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.stats.truth_ratio import truth_ratios as ratios_of_losses

_SHOWN = 60
"""Largest number of characters of a question in a message."""


def truth_ratios(evaluation: SetEvaluation, profile: Profile) -> FloatArray:
    """Compute the truth ratios R [n] of a set under a profile, see `stats/truth_ratio.py`.

    They are NaN for rows without perturbed answers, such as holdout rows.
    """
    if not evaluation.perturbed_loss.shape[1]:
        return np.full(len(evaluation.base_loss), np.nan)
    return ratios_of_losses(
        evaluation.base_loss,
        evaluation.perturbed_loss,
        mean=profile.perturbed_mean,
        epsilon=profile.truth_ratio_epsilon,
        where=evaluation.perturbed,
    )


def forget_ratios(evaluation: Evaluation) -> FloatArray:
    """Compute the truth ratios [n] of the set `forget`, by the evaluation's own profile.

    Raises:
        EvaluationError: This version does not know the profile.
    """
    return truth_ratios(evaluation.sets["forget"], profile_of_id(evaluation.profile))


def summarize(
    evaluation: Evaluation,
    retain: Evaluation | None,
    profile: Profile,
    start: Evaluation | None = None,
    benchmark: Benchmark | None = None,
    chosen: MetricChoices = NO_CHOICES,
    references: frozenset[Reference] | None = None,
) -> dict[str, float | None]:
    """Compute all metrics of an evaluation.

    Args:
        evaluation: The evaluation.
        retain: The retain model's evaluation. Without it, Forget Quality and its companions are
            None.
        profile: Rules of the evaluation.
        start: The start model's plain evaluation. Without it, metrics relative to the start model
            are None.
        benchmark: The benchmark; None for TOFU.
        chosen: Metrics that a configuration names, with their settings.
        references: The models that exist for a comparison, whether they are given here or not.
            None: a benchmark that can do without a retain model has one if `retain` is given.

    Returns:
        Numbers by the columns of `results.csv`; None if a value is not a number.

    Raises:
        EvaluationError: The evaluations are by different rules, or of different questions.
    """
    benchmark = benchmark or benchmark_named("tofu")
    _check_same_profile("the evaluation", evaluation.profile, "it is summarised by", profile.id)
    if references is None:
        references = references_with(benchmark, has_retain=retain is not None)
    plan = plan_of(profile, benchmark, chosen, references)
    subject = benchmark.headline_with(references).forgotten.name
    sets = forget_sets(benchmark, evaluation)
    return values_of(plan, sets, subject, evaluation, retain, start)


def values_of(
    plan: MetricPlan,
    forget: Iterable[SetName],
    subject: str,
    evaluation: Evaluation,
    retain: Evaluation | None,
    start: Evaluation | None,
) -> dict[str, float | None]:
    """Compute the metrics of a plan.

    Args:
        plan: The metrics.
        forget: Names of the sets whose questions must be the same as the retain model's.
        subject: Name of the number that compares with the retain model, for the message.
        evaluation: The evaluation.
        retain: The retain model's evaluation, if there is one.
        start: The start model's evaluation, if there is one.

    Returns:
        Numbers by column.

    Raises:
        EvaluationError: The evaluations are by different rules, or of different questions.
    """
    if retain is not None:
        _check_same_profile(
            "the evaluation", evaluation.profile, "the retain model's", retain.profile
        )
        check_precision("the model", evaluation.precision, "the retain model", retain.precision)
        check_same_questions(evaluation, retain, forget, subject)
    retain_model = None if retain is None else _evaluated_model(plan, retain)
    start_model = None if start is None else _evaluated_model(plan, start)
    return plan.values(evaluation.sets, retain_model, start_model)


def plan_of(
    profile: Profile,
    benchmark: Benchmark | None = None,
    chosen: MetricChoices = NO_CHOICES,
    references: frozenset[Reference] | None = None,
) -> MetricPlan:
    """Return the metrics of a benchmark under a profile, see `benchmark_plan`.

    Without a benchmark they are TOFU's, because logs and records of earlier versions name none.
    """
    return benchmark_plan(profile, benchmark or benchmark_named("tofu"), chosen, references)


# All runs of a sweep are compared with the same few models.
@lru_cache(maxsize=8)
def _evaluated_model(plan: MetricPlan, evaluation: Evaluation) -> EvaluatedModel:
    """Return a model that others are compared with, and its own metrics."""
    return EvaluatedModel(evaluation.sets, plan.values(evaluation.sets))


def _check_same_profile(first: str, profile: str, second: str, other: str) -> None:
    if profile != other:
        raise EvaluationError(
            f"{first} is by profile {profile:.80}, {second} {other:.80}: numbers of different "
            "profiles do not compare; evaluate both by the same one"
        )


def first_difference(questions: Sequence[str], others: Sequence[str]) -> int | None:
    """Return the index of the first question that differs; None if none does.

    Only questions that both lists have a place for are compared. White space does not count,
    because it may come from different tokenizers.
    """
    for index, (question, other) in enumerate(zip(questions, others, strict=False)):
        if question.split() != other.split():
            return index
    return None


def forget_sets(benchmark: Benchmark, *evaluations: Evaluation) -> tuple[SetName, ...]:
    """Return the names of the sets of forget rows that all these evaluations have."""
    return tuple(
        name
        for name, role in benchmark.set_roles.items()
        if role == "forget" and all(name in evaluation.sets for evaluation in evaluations)
    )


def check_same_questions(
    model: Evaluation, retain: Evaluation, sets: Iterable[SetName], subject: str
) -> None:
    """Check that a model and the retain model were asked the same questions.

    Only questions that both have are compared: `ks_test` refuses unequal numbers of rows.

    Args:
        model: Evaluation of the model.
        retain: Evaluation of the retain model, which may lack sets.
        sets: Names of the sets to compare.
        subject: Number that needs the same questions, for the message.

    Raises:
        EvaluationError: If a question differs.
    """
    for name in sets:
        if name not in model.sets or name not in retain.sets:
            continue
        questions = model.sets[name].questions
        retain_questions = retain.sets[name].questions
        index = first_difference(questions, retain_questions)
        if index is not None:
            raise EvaluationError(
                f"{subject}: {name} question {index} is "
                f"{questions[index][:_SHOWN]!r} for the model and "
                f"{retain_questions[index][:_SHOWN]!r} for the retain model; "
                "what is relative to it needs the same questions on both sides: evaluate both on "
                "the same forget split"
            )
