"""An evaluation as a table: a row per question, for a notebook.

JSON lines, which `pandas.read_json(path, lines=True)` reads. The perturbed answers' values are
lists, so that there is one row per question whatever their number.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import EvaluatedModel, MetricInputs, guarded
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import PluginError
from unlearnbench.base.outputs import writing
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.evaluation.summary import plan_of, truth_ratios


def questions_table(
    evaluation: Evaluation,
    benchmark: Benchmark | None = None,
    retain: Evaluation | None = None,
    chosen: MetricChoices = NO_CHOICES,
) -> list[dict[str, Any]]:
    """Return one dictionary per question, set by set.

    Args:
        evaluation: The evaluation of a model.
        benchmark: The benchmark whose metrics are computed. Defaults to TOFU.
        retain: The retain model's evaluation, with which some metrics compare.
        chosen: Metrics that are computed in addition to the usual ones, with their settings.

    Returns:
        Dictionaries with these keys:

        - `set`, `index`: the question's place, as in TOFU's log
        - `question`, `reference`, `generated`: None if the evaluation has only scores
        - `answer_loss`, `answer_tokens`: the true answer's mean loss in nats, and scored tokens
        - `base_loss`, `base_tokens`: the same of the paraphrase, or of the answer, that the truth
          ratio is about
        - `perturbed_loss`, `perturbed_tokens`: lists with one value per perturbed answer
        - `truth_ratio`: R by the evaluation's own profile. Above 1 the true answer is likelier.
        - `rouge1_recall`, `rougeL_recall`: of the generated answer
        - each metric by its name, such as `exact_memorization`, or `mia_loss` for the score of a
          membership inference attack: None if it is not computed on that set. The truth ratio in
          the set's own form is `truth_ratio_value`.
    """
    profile = profile_of_id(evaluation.profile)
    compared = None if retain is None else EvaluatedModel(retain.sets)
    inputs = MetricInputs(EvaluatedModel(evaluation.sets), compared)
    plan = plan_of(profile, benchmark, chosen)
    metrics_of_set = {name: _metrics(name, inputs, plan) for name in evaluation.sets}
    # Every row has the metrics of all sets, so that the rows make one table.
    metric_names = dict.fromkeys(key for values in metrics_of_set.values() for key in values)
    rows: list[dict[str, Any]] = []
    for name, evaluated in evaluation.sets.items():
        metrics = {key: metrics_of_set[name].get(key) for key in metric_names}
        rows += _rows(name, evaluated, profile, metrics)
    return rows


def _metrics(set_name: str, inputs: MetricInputs, plan: MetricPlan) -> dict[str, FloatArray]:
    """Return the values [n] of every metric that gives each example of a set a number.

    A metric that fails is left out here, as it is left out of the summary, which warns of it.
    """
    values_of_metric: dict[str, FloatArray | None] = {}
    for measure in plan.measures:
        if set_name in measure.sets:
            with suppress(PluginError):
                evaluated = inputs.model.sets[set_name]
                values_of_metric[measure.name] = measure.per_example(evaluated)
    for summary in plan.summaries.values():
        if not isinstance(summary, MembershipInference):
            continue
        if set_name in (summary.members, summary.others):
            with suppress(PluginError), guarded(summary, "scores"):
                values_of_metric[f"mia_{summary.key}"] = summary.of_set(inputs, set_name)
    return {key: values for key, values in values_of_metric.items() if values is not None}


def _rows(
    set_name: str,
    evaluated: SetEvaluation,
    profile: Profile,
    metrics: Mapping[str, FloatArray | None],
) -> list[dict[str, Any]]:
    """Return the rows of one set. A metric that is None has no values on this set."""
    n = len(evaluated.answer_loss)
    columns: dict[str, list[Any]] = {
        "set": [set_name] * n,
        "index": list(range(n)),
        "question": list(evaluated.questions) or [None] * n,
        "reference": list(evaluated.references) or [None] * n,
        "generated": list(evaluated.generated) or [None] * n,
        "answer_loss": evaluated.answer_loss.tolist(),
        "answer_tokens": evaluated.answer_tokens.tolist(),
        "base_loss": evaluated.base_loss.tolist(),
        "base_tokens": evaluated.base_tokens.tolist(),
        "perturbed_loss": _of_each(evaluated, evaluated.perturbed_loss),
        "perturbed_tokens": _of_each(evaluated, evaluated.perturbed_tokens),
        "truth_ratio": truth_ratios(evaluated, profile).tolist(),
        "rouge1_recall": evaluated.rouge1_recall.tolist(),
        "rougeL_recall": evaluated.rouge_l_recall.tolist(),
    }
    for key, values in metrics.items():
        column = key if key not in columns else f"{key}_value"
        columns[column] = [None] * n if values is None else values.tolist()
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _of_each(evaluated: SetEvaluation, column: NDArray[Any]) -> list[list[Any]]:
    """Return the values of each question's own perturbed answers.

    Args:
        evaluated: The set.
        column: [n, k] for at most k perturbed answers. `SetEvaluation.perturbed` says which exist.
    """
    pairs = zip(column, evaluated.perturbed, strict=True)
    return [values[exists].tolist() for values, exists in pairs]


def write_questions(
    evaluation: Evaluation,
    path: Path | str,
    benchmark: Benchmark | None = None,
    retain: Evaluation | None = None,
    chosen: MetricChoices = NO_CHOICES,
) -> None:
    """Write `questions_table` to `path` as JSON lines; whole or not at all."""
    rows = questions_table(evaluation, benchmark, retain, chosen)
    with writing(Path(path), "the questions") as part, part.open("w", encoding="utf-8") as file:
        for row in rows:
            finite = {key: _finite(value) for key, value in row.items()}
            file.write(json.dumps(finite, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    """Return a value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
