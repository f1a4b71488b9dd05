"""All metrics of an evaluation, and what two evaluations need to have in common to compare."""

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


def truth_ratios(evaluation: SetEvaluation, profile: Profile) -> FloatArray:
    """[n] truth ratios R of a set under a profile, see `stats/truth_ratio.py`.

    NaN without perturbed answers, as holdout rows are.
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
    """[n] truth ratios of the forget set, by the evaluation's own profile.

    Raises: EvaluationError where this version does not know the profile.
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
    """All metrics of an evaluation, by the columns of `results.csv`.

    Forget Quality and its companions need the retain model's evaluation, scores relative to where
    runs begin the start model's; without them, and wherever a value is not a number, a metric is
    None. The benchmark is TOFU where none is given; `chosen` are a configuration's metrics.
    `references` are the models that there are to compare with, whether they are given here or not;
    by default a benchmark that can do without a retain model has one if it is given.
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
    """The metrics of a plan, by column.

    forget  sets whose questions are to be the retain model's
    subject  name of the comparison, for the message
    """
    if retain is not None:
        _check_same_profile(
            "the evaluation", evaluation.profile, "the retain model's", retain.profile
        )
        check_precision("the model", evaluation.precision, "the retain model", retain.precision)
        check_same_questions(evaluation, retain, forget, subject)
    others = (None if item is None else _known(plan, item) for item in (retain, start))
    return plan.values(evaluation.sets, *others)


def plan_of(
    profile: Profile,
    benchmark: Benchmark | None = None,
    chosen: MetricChoices = NO_CHOICES,
    references: frozenset[Reference] | None = None,
) -> MetricPlan:
    """The metrics of a benchmark under a profile, see `benchmark_plan`.

    Without a benchmark, those of TOFU's schema, which logs and records of earlier versions have.
    """
    return benchmark_plan(profile, benchmark or benchmark_named("tofu"), chosen, references)


@lru_cache(maxsize=8)
def _known(plan: MetricPlan, evaluation: Evaluation) -> EvaluatedModel:
    """A model that others are compared with, and what is known of it by itself."""
    return EvaluatedModel(evaluation.sets, plan.values(evaluation.sets))


def _check_same_profile(first: str, profile: str, second: str, other: str) -> None:
    if profile != other:
        raise EvaluationError(
            f"{first} is by profile {profile:.80}, {second} {other:.80}: numbers of different "
            "profiles do not compare; evaluate both by the same one"
        )


def first_difference(questions: Sequence[str], others: Sequence[str]) -> int | None:
    """Index of the first question that differs, up to the shorter list; None if none does.

    White space does not count: it may come from other tokenizers.
    """
    pairs = enumerate(zip(questions, others, strict=False))
    return next((i for i, (item, other) in pairs if item.split() != other.split()), None)


def forget_sets(benchmark: Benchmark, *of: Evaluation) -> tuple[SetName, ...]:
    """The sets of forget rows that all these evaluations have."""
    names = (name for name, role in benchmark.set_roles.items() if role == "forget")
    return tuple(name for name in names if all(name in item.sets for item in of))


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
        questions, others = (item.sets[name].questions for item in (model, retain))
        i = first_difference(questions, others)
        if i is not None:
            raise EvaluationError(
                f"{subject}: {name} question {i} is "
                f"{questions[i][:60]!r} for the model and {others[i][:60]!r} for the retain model; "
                "what is relative to it needs the same questions on both sides: evaluate both on "
                "the same forget split"
            )
