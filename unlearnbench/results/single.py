"""Make records of models that are evaluated without a sweep.

`evaluate`, `score` and `attack` judge one model, and compare it with its retain and start model.
Their numbers are computed from the records that are made here, by the same code as for a sweep.
Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal

from unlearnbench.api.benchmark import Benchmark, SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import EvaluationError, shortened
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.summary import check_same_questions, first_difference, plan_of
from unlearnbench.evaluation.word_check import KEY as UNCOUNTED
from unlearnbench.evaluation.word_check import evaluated_shares, rouge_sets
from unlearnbench.results.records import EpochResult, Record

PLAIN = ""
"""Variant of an evaluation without an attack."""
Variants = Mapping[str, Evaluation]
"""The evaluations of a model by variant: `PLAIN`, and `relearning@13` under an attack."""


class ModelRole(StrEnum):
    """Roles of models when one of them is judged."""

    MODEL = "model"
    """The model that is judged."""
    RETAIN = "retain"
    """The retain model that it is compared with."""
    START = "start"
    """The start model that it is compared with."""

    @property
    def kind(self) -> Literal["run", "retain", "fine-tuned"]:
        """Kind of the model's record."""
        match self:
            case ModelRole.MODEL:
                return "run"
            case ModelRole.RETAIN:
                return "retain"
            case ModelRole.START:
                return "fine-tuned"


def records_of(
    models: Mapping[ModelRole, Variants],
    benchmark: Benchmark,
    split: SplitKey,
    attacks: Iterable[AttackSpec] = (),
    metrics: MetricChoices = NO_CHOICES,
) -> tuple[Record, ...]:
    """Make the records of a model, and of the retain and start model that it is compared with.

    Args:
        models: Evaluations of each model. The retain and the start model may be missing.
        benchmark: Benchmark with the sets that all of them were evaluated on.
        split: Division into forget and retain rows.
        attacks: The attacks that the models were evaluated under.
        metrics: Metrics that are computed in addition to the usual ones, with their settings.

    Raises:
        EvaluationError: If the models were not evaluated by the same rules on the same rows.
    """
    check_comparable({role: variants[PLAIN] for role, variants in models.items()}, benchmark)
    spec: dict[str, Any] = {"data": benchmark.model_dump(mode="json")}
    specs = [attack.model_dump(mode="json") for attack in attacks]
    if specs:
        spec["attacks"] = specs
    if metrics:
        # The specification of a run and that of other models have them in different places.
        spec["evaluation"] = {"metrics": metrics}
        spec["metrics"] = metrics
    if ModelRole.RETAIN not in models:
        # A specification with neither a base nor retain models says that there is no retain model.
        # Otherwise, the analysis would report that it is missing.
        spec["model"] = {"base": None, "retain": {}}
    return tuple(
        _record(role, variants, benchmark, split, spec) for role, variants in models.items()
    )


def _record(
    role: ModelRole,
    variants: Variants,
    benchmark: Benchmark,
    split: SplitKey,
    spec: Mapping[str, Any],
) -> Record:
    """Make the record of one model. `spec` is the specification that all models share."""
    plain = variants[PLAIN]
    # Epoch 0 of a run is the start model.
    epoch = 1 if role is ModelRole.MODEL else 0
    attacked = {(epoch, variant): evaluation for variant, evaluation in variants.items() if variant}
    reported_with_rouge = rouge_sets(plan_of(profile_of_id(plain.profile), benchmark))
    uncounted = evaluated_shares(plain, reported_with_rouge)
    record = Record(
        id=role.value,
        kind=role.kind,
        model=ModelRole.MODEL.value,
        forget_fraction=split,
        method="the model" if role is ModelRole.MODEL else role.kind,
        learning_rate=None,
        seed=0,
        # The specification has no method, so that no method counts as one at inference time.
        spec=spec,
        status="finished",
        profile=plain.profile,
        precision=plain.precision,
        epochs=(EpochResult(epoch, {}, 0.0, 0.0),),
        attacked=tuple(EpochResult(epoch, {}, 0.0, 0.0, variant) for _, variant in attacked),
        provenance={UNCOUNTED: uncounted} if uncounted else {},
        evaluations={epoch: plain},
        attacked_evaluations=attacked,
    )
    return record.redacted()


def check_comparable(models: Mapping[ModelRole, Evaluation], benchmark: Benchmark) -> None:
    """Check that the retain and start model were evaluated as the model was.

    Args:
        models: Plain evaluations.
        benchmark: Benchmark with the sets that they were evaluated on. A log may lack sets. For
            example, the log of a retain model may have only the forget set.

    Raises:
        EvaluationError: If profiles, precisions or rows differ.
    """
    model = models[ModelRole.MODEL]
    retain = models.get(ModelRole.RETAIN)
    start = models.get(ModelRole.START)
    if retain is not None:
        check_profile("--retain", retain, model.profile)
        check_precision("the model", model.precision, "the retain model", retain.precision)
        forget_sets = [name for name, role in benchmark.set_roles.items() if role == "forget"]
        headline = benchmark.headline_with(benchmark.references)
        check_same_questions(model, retain, forget_sets, headline.forgotten.name)
        for name in dict.fromkeys((*forget_sets, *model.sets)):
            _check_same_rows("--retain", name, model, retain)
    if start is not None:
        check_profile("--start", start, model.profile)
        check_precision("the model", model.precision, "the start model", start.precision)
        for name in model.sets:
            _check_same_rows("--start", name, model, start)


def check_profile(place: str, evaluation: Evaluation, expected: str) -> None:
    """Raise EvaluationError unless an evaluation has the profile of the model's evaluation.

    Args:
        place: Option or file that names the evaluation.
        evaluation: Evaluation of the retain or start model.
        expected: Id of the profile of the model's evaluation.
    """
    if evaluation.profile != expected:
        raise EvaluationError(
            f"{place}: by profile {shortened(evaluation.profile)[1:-1]}, and the model by "
            f"{expected}: numbers of different profiles do not compare; evaluate both by the same "
            "one (--profile)"
        )


def _check_same_rows(option: str, set_name: str, model: Evaluation, other: Evaluation) -> None:
    """Raise EvaluationError if two evaluations of a set have other rows.

    Nothing is checked if one of them lacks the set.
    """
    if set_name not in model.sets or set_name not in other.sets:
        return
    rows = model.sets[set_name]
    other_rows = other.sets[set_name]
    count = len(rows.answer_loss)
    other_count = len(other_rows.answer_loss)
    # Logs of open-unlearning have no questions, only their number.
    differs = first_difference(rows.questions, other_rows.questions) is not None
    if count != other_count or differs:
        raise EvaluationError(
            f"{option}: evaluated on {other_count} {set_name} questions, the model on {count}, and "
            "they must be the same; evaluate both on the same split"
        )
